"""Log lines: one event is one line, with its ids, and without secrets."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from shared.platform import logs
from tests.harness.settings import child_environment

TIMESTAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


class Lines:
    """A logger whose lines are kept."""

    def __init__(self, *, as_json: bool) -> None:
        self.logger = logging.Logger("flotilla.part")
        self._stream = io.StringIO()
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(logs.formatter(as_json=as_json))
        self.logger.addHandler(handler)

    @property
    def all(self) -> list[str]:
        return self._stream.getvalue().splitlines()

    def parsed(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.all]


@pytest.fixture(autouse=True)
def nothing_bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(logs, "_process_fields", {})
    logs.clear_contextvars()
    yield
    logs.clear_contextvars()


def test_a_line_of_json_has_time_level_logger_and_bound_ids() -> None:
    lines = Lines(as_json=True)
    logs.bind_process(worker="w-1")
    logs.bind_contextvars(request_id="req-7", job_id="job_1", attempt=2)
    lines.logger.warning("%s released", "job_1", extra={"pool": "demo"})
    (line,) = lines.parsed()
    assert re.fullmatch(TIMESTAMP, line.pop("timestamp"))
    assert line == {
        "level": "warning",
        "logger": "flotilla.part",
        "message": "job_1 released",
        "request_id": "req-7",
        "job_id": "job_1",
        "attempt": 2,
        "pool": "demo",
        "worker": "w-1",
    }


def test_a_pretty_line_is_read_from_left_to_right() -> None:
    lines = Lines(as_json=False)
    logs.bind_contextvars(job_id="job_1")
    lines.logger.info("claimed %d jobs", 3)
    (line,) = lines.all
    pattern = TIMESTAMP + r" \[info     \] claimed 3 jobs \[flotilla\.part\] job_id=job_1"
    assert re.fullmatch(pattern, line), line


@pytest.mark.parametrize("as_json", [False, True])
def test_one_event_is_one_line_whatever_a_client_puts_into_it(as_json: bool) -> None:
    lines = Lines(as_json=as_json)
    lines.logger.info("refused %s", "a\r\nb\n2026-01-01 info all is well")
    assert len(lines.all) == 1


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("control", ["\x1b[2J", "\x9b2J", "\x7f", "\u202e", "\u2066"])
def test_no_text_of_a_client_controls_the_terminal_of_who_reads_the_log(
    as_json: bool, control: str
) -> None:
    lines = Lines(as_json=as_json)
    text = f"a{control}b"
    lines.logger.info("cancel of all jobs that match %s", text, extra={"reason": text})
    (line,) = lines.all
    assert control[0] not in line
    assert f"\\u{ord(control[0]):04x}" in line
    if as_json:
        assert lines.parsed()[0]["reason"] == text


def test_an_exception_is_one_field_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(as_json=True)
    try:
        raise ValueError("broken")
    except ValueError:
        lines.logger.exception("the run failed")
    (line,) = lines.parsed()
    assert line["message"] == "the run failed"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: broken")
    assert capsys.readouterr().err == ""


def test_a_pretty_line_names_the_exception_and_stderr_has_the_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = Lines(as_json=False)
    try:
        raise ValueError("broken")
    except ValueError:
        lines.logger.exception("the run failed")
    (line,) = lines.all
    assert "the run failed: ValueError('broken')" in line
    assert capsys.readouterr().err.startswith("Traceback")


@pytest.mark.parametrize("as_json", [False, True])
def test_passwords_of_addresses_are_cut_out(as_json: bool) -> None:
    lines = Lines(as_json=as_json)
    lines.logger.error("no answer from %s", "rediss://user:s3cret@10.0.0.5:6379/0")
    lines.logger.error("no answer", extra={"server": "redis://:s3cret@10.0.0.5"})
    for line in lines.all:
        assert "s3cret" not in line
        assert "://***@10.0.0.5" in line


def test_our_lines_go_to_stdout_and_a_librarys_to_stderr() -> None:
    code = """if True:
        import logging
        from shared.platform import logs
        logs.set_up("info", "json")
        logs.show_warnings("celery", "json")
        logging.getLogger("flotilla.part").info("ours")
        logging.getLogger("celery.app").info("not shown")
        logging.getLogger("celery.app").warning("a library's")
        logging.getLogger("other").warning("another library's")
        print("a library prints")
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    assert json.loads(done.stdout)["message"] == "ours"
    shown, other, printed = done.stderr.splitlines()
    assert json.loads(shown)["message"] == "a library's"
    assert (other, printed) == ("another library's", "a library prints")


def test_a_rare_warning_counts_what_it_leaves_out() -> None:
    lines = Lines(as_json=True)
    warning = logs.RareWarning(lines.logger, every_s=3600)
    for number in range(3):
        warning("refused %d", number)
    assert [line["message"] for line in lines.parsed()] == ["refused 0"]
    warning._next = 0.0
    warning("refused %d", 3)
    assert lines.parsed()[1]["message"] == "refused 3 (2 such lines left out before)"
