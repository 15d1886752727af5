"""The names that users have in their programs: routes, errors, settings, commands, metrics."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.api import public_names as public
from tests.harness.cli import run_flotilla
from tests.harness.client import CHAT, Call, chat, http, in_progress
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

FLOTILLA = {"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"}


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> tuple[Process, Process]:
    """A gateway, and a worker with one slot."""
    worker = module_stack.worker(sim_step_ms=5, sim_step_us_per_seq=0, sim_max_num_seqs=1)
    module_stack.maintenance()
    return module_stack.gateway(), worker


@pytest.fixture(scope="module")
def description(fleet: tuple[Process, Process]) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"{fleet[0].url}/openapi.json").json()
    return found


def names(text: str, separator: str = "\n") -> list[str]:
    return [name for name in (each.strip() for each in text.split(separator)) if name]


def test_routes(description: dict[str, Any]) -> None:
    found = {
        f"{method.upper()} {path}"
        for path, operations in description["paths"].items()
        for method in operations
    }
    assert not set(names(public.ROUTES)) - found


def test_errors(description: dict[str, Any]) -> None:
    found = {
        f"{status} {code}"
        for operations in description["paths"].values()
        for operation in operations.values()
        for status, answer in operation["responses"].items()
        for code in re.findall(r"`(\w+)`:", answer["description"])
    }
    assert not set(names(public.ERRORS)) - found


def test_settings() -> None:
    shown = run_flotilla("config", "show", "--all", environment=FLOTILLA).stdout
    found = set(re.findall(r"^ *(\w+):", shown, re.MULTILINE))
    assert not set(public.SETTINGS.split()) - found


@pytest.mark.parametrize("command", names(public.COMMANDS.replace("\n", " "), ","))
def test_commands(command: str) -> None:
    shown = run_flotilla(*command.split(), "--help", environment=FLOTILLA)
    assert f"flotilla {command}" in shown.stdout


def test_headers(fleet: tuple[Process, Process]) -> None:
    gateway, _ = fleet
    long = Call(gateway, chat("long", max_tokens=8000, ignore_eos=True, stream=True))
    wait_for(lambda: in_progress(gateway, 1), "the only slot is taken")
    waiting = {"x-flotilla-queue-deadline": "300", "x-flotilla-run-deadline": "600"}
    waiting |= {"x-flotilla-on-disconnect": "cancel", "idempotency-key": "one"}
    assert set(waiting) == set(public.REQUEST_HEADERS.split())
    with http.stream(
        "POST", f"{gateway.url}{CHAT}", json=chat(stream=True), headers=waiting, timeout=60
    ) as answer:
        assert answer.status_code == 200
        assert not set(public.ANSWER_HEADERS.split()) - set(answer.headers)
    url = f"{gateway.url}/jobs/{long.job_id}/cancel"
    assert http.post(url).status_code == 200


def test_metrics(fleet: tuple[Process, Process]) -> None:
    gateway, worker = fleet
    assert http.post(f"{gateway.url}{CHAT}", json=chat(max_tokens=2)).status_code == 200
    for process, wanted in ((gateway, public.GATEWAY_METRICS), (worker, public.WORKER_METRICS)):
        missing = set(wanted.split())

        def complete(process: Process = process, missing: set[str] = missing) -> bool:
            text = http.get(f"{process.url}/metrics", timeout=30).text
            missing -= set(re.findall(r"^(?:# TYPE )?(\w+)", text, re.MULTILINE))
            return not missing

        wait_for(complete, f"{process.name} has all metrics")
