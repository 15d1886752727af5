"""`flotilla top`: what keys change, what is drawn, and the command in a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from gateway.cli.top.keyboard import split_keys
from gateway.cli.top.screen import FAILED, Call, Describe, Quit, Screen, View, press
from gateway.cli.top.top_page import Shown, live, once
from gateway.cli.workers_command import bar
from tests.harness.settings import ROOT, child_environment
from tests.unit.gateway.cli.conftest import Flotilla
from tests.unit.gateway.cli.samples import LOST, TIMELINE, WHY, job, jobs, overview, worker
from tests.unit.gateway.cli.stub import StubGateway, error, events

DEADLINE_S = 30.0
GOOD = overview()
BAD = overview(LOST, workers=[worker(), worker("w-2"), worker("w-3", state="lost", lost=True)])
IDS = ["w-1", "w-2"]


def after(
    keys: list[str], ids: list[str] = IDS, shown: dict[str, Any] = GOOD
) -> tuple[Screen, Any]:
    screen, effect = Screen(), None
    for key in keys:
        screen, effect = press(screen, key, ids, shown)
    return screen, effect


def test_the_selection_stays_in_the_list() -> None:
    assert after(["up"])[0].selected == 0
    assert after(["down", "down", "down"])[0].selected == 1
    assert after(["down", "j"])[0].selected == 0


def test_a_filter_is_typed() -> None:
    screen, _ = after(["j", "/", *"stats", "backspace", *"e:failed", "enter"])
    assert (screen.job_filter, screen.worker_filter, screen.typing) == ("state:failed", "", None)
    assert after(["/", *"q", "esc"])[0].filter == ""
    screen, _ = after(["/", *"w-1", "enter", "esc"])
    assert screen.filter == ""


def test_a_change_is_confirmed() -> None:
    screen, effect = after(["down", "x"])
    assert (screen.question, effect) == (
        Call("drain", "w-2", "Drain w-2?", "w-2 drains"),
        None,
    )
    assert press(screen, "y", IDS, GOOD)[1] == screen.question
    assert press(screen, "n", IDS, GOOD) == (
        replace(screen, question=None, message="not done"),
        None,
    )
    _, effect = after(["j", "c", "y"], ["job_1"])
    assert effect[:2] == ("cancel", "job_1")
    _, effect = after(["j", "enter", "r", "y"], ["job_1"])
    assert effect[:2] == ("retry", "job_1")


def test_keys_without_a_row_or_for_another_list_say_so() -> None:
    assert after(["x"], [])[0].message == "select a row first"
    assert after(["c"])[0].message == "select a job first: j"
    assert after(["j", "x"], ["job_1"])[0].message == "select a worker first: w"


def test_details_and_back() -> None:
    screen, effect = after(["j", "d"], ["job_1"])
    assert (screen.view, screen.subject, effect) == (View.DETAILS, "job_1", Describe("job_1"))
    assert press(screen, "esc", ["job_1"], GOOD)[0].view is View.JOBS
    assert after(["?", "esc"])[0].view is View.WORKERS
    assert after(["enter"])[1] is None
    assert isinstance(after(["q"])[1], Quit)


def test_the_worst() -> None:
    screen, _ = after(["!"], IDS, BAD)
    assert (screen.view, screen.selected) == (View.WORKERS, 0)  # w-3: the lost one is the first
    screen, _ = after(["!"])
    assert (screen.view, screen.job_filter) == (View.JOBS, FAILED)


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"j", ["j"]),
        (b"\x1b[A\x1b[Bq", ["up", "down", "q"]),
        (b"\x1b", ["esc"]),
        (b"\r\x7f\x03", ["enter", "backspace", "ctrl-c"]),
        (b"\x1b[15~", []),
        ("\u00e4b".encode(), ["\u00e4", "b"]),
        (b"\x00\xff", []),
    ],
)
def test_split_keys(data: bytes, keys: list[str]) -> None:
    assert split_keys(data) == keys


def test_bar() -> None:
    assert bar(2, 4) == "|##..|"
    assert bar(1, 64) == "|#" + "." * 15 + "|"
    assert bar(64, 64) == "|" + "#" * 16 + "|"
    assert bar(0, 0) == "|.|"
    assert bar(1, 2, lost=True) == "|xx|"


def drawn(what: RenderableType, width: int = 120) -> list[str]:
    console = Console(width=width, height=30, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(what)
    return [line.rstrip() for line in captured.get().splitlines()]


def drawn_live(shown: Shown, width: int = 120) -> list[str]:
    return drawn(live(shown, Console(width=width, height=30)), width)


def test_a_good_day() -> None:
    page = "\n".join(drawn(once(GOOD)))
    for part in (
        "flotilla 0.1.0  gw-1  vllm 0.32.0 (cpu)",
        "Healthy. 2 workers, 80 of 128 slots busy.",
        "in   31.0/s > waiting      9 > running     80 > done   31.0/s",
        "cancelled      -/s  tokens  37.0k/s",
        "p50 p95 p99  TTFT  90 ms 300 ms 1.50 s",
        "wait      -      -      -",
        "w-1     ready",
        "40/64",
    ):
        assert part in page, page


def test_a_bad_day_says_what_to_do() -> None:
    page = drawn(once(BAD | {"simulated": True}))
    assert page[1].startswith("SIMULATED")
    assert page[2] == "! 1 problem: a worker is lost."
    assert page[3] == f"  {LOST['sentence']}  Start it again."
    same = BAD | {"verdict": {**BAD["verdict"], "sentence": LOST["sentence"]}}
    assert drawn(once(same))[2] == "  Start it again."  # the sentence is not repeated
    rows = [line for line in page if line.startswith("w-")]
    assert rows[0].startswith("w-3     lost   |xxxx")


def test_the_page_does_not_move_when_figures_grow() -> None:
    small, large = overview(), overview()
    large["rates"] |= {"submitted": 98_765.4, "completed": 1_204_331, "failed": 1.0}
    large["pools"][0] |= {"waiting": 99_999}
    for before, now in ((small, large),):
        first, second = (
            drawn_live(Shown(Screen(), each, time.monotonic()), 160) for each in (before, now)
        )
        assert len(first) == len(second) == 30
        flow = [next(line for line in page if line.startswith("in ")) for page in (first, second)]
        assert [flow[0].index(word) for word in (">", "done", "running")] == [
            flow[1].index(word) for word in (">", "done", "running")
        ]


@pytest.mark.parametrize("view", View)
def test_every_view_is_drawn(view: View) -> None:
    rows = View.JOBS if view is View.JOBS else View.WORKERS
    screen = Screen(view, rows, subject="w-1", typing="x" if view is View.JOBS else None)
    page = "\n".join(drawn_live(Shown(screen, GOOD, time.monotonic() - 9, [job()])))
    assert "STALE: 9.0 s old" in page
    expected = {View.WORKERS: "w-2", View.JOBS: "job_1", View.HELP: "cancel the selected job"}
    assert expected.get(view, "kv_use") in page
    error = drawn_live(
        Shown(Screen(View.JOBS, View.JOBS), GOOD, time.monotonic(), (), "no such word")
    )
    assert "no such word" in error


def test_without_a_terminal_it_prints_one_page(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers["GET /admin/overview"] = GOOD
    result = flotilla("top")
    assert result.exit_code == 0
    assert "Healthy." in result.stdout
    assert json.loads(flotilla("top", "--once", "--json").stdout) == GOOD


def test_json_is_a_line_for_each_overview(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers["GET /admin/overview"] = GOOD
    stub.answers["GET /admin/stream"] = events(("overview", GOOD), ("overview", BAD))
    lines = flotilla("top", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [GOOD, BAD]


def test_in_a_terminal(stub: StubGateway) -> None:
    stub.answers |= {
        "GET /admin/overview": [GOOD, BAD],
        "GET /jobs": jobs(job("job_77", state="queued")),
        "GET /jobs/job_77/why": WHY,
        "GET /jobs/job_77/timeline": TIMELINE,
        "POST /jobs/job_77/cancel": error("It has ended.", 409, "x"),
    }
    code = "from gateway.cli.main import main; main()"
    environment = child_environment() | {
        "FLOTILLA_URL": stub.url, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120",
        "LINES": "40",
    }  # fmt: skip
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code, "top"],
        stdin=end, stdout=end, stderr=end, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(end)
    try:
        expect(terminal, "a worker is lost")
        for keys, text in (
            (b"j", "job_77"),
            (b"\r", "It waits for a free slot"),
            (b"c", "Cancel job_77?"),
            (b"y", "It has ended."),
            (b"?", "cancel the selected job"),
        ):
            os.write(terminal, keys)
            expect(terminal, text)
        os.write(terminal, b"q")
        until = time.monotonic() + DEADLINE_S
        while process.poll() is None and time.monotonic() < until:
            read(terminal, 0.05)
        assert process.poll() == 0
        assert "GET /jobs?filter=tenant%3A%2A&limit=50" in [line for line, _ in stub.sent()]
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def read(terminal: int, timeout_s: float) -> bytes:
    """What has come from the terminal; empty if nothing has."""
    try:
        ready, _, _ = select.select([terminal], [], [], timeout_s)
        return os.read(terminal, 1 << 16) if ready else b""
    except OSError:  # the program has ended
        return b""


def expect(terminal: int, text: str) -> None:
    """Read until this text has come."""
    seen, until = b"", time.monotonic() + DEADLINE_S
    while text.encode() not in seen:
        assert time.monotonic() < until, f"{text!r} is not in {seen[-2000:]!r}"
        seen += read(terminal, 0.1)
