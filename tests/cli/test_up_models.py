"""`flotilla up` with one model after the other in the same folder."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cli import run_flotilla
from tests.harness.client import chat, http, states, submit
from tests.harness.up import REAL, Up
from tests.harness.waiting import wait_for

Start = Callable[..., Up]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Serve a model in the same folder; it ends the one that was served before."""
    started: list[Up] = []

    def end(one: Up) -> None:
        one.process.send_signal(signal.SIGINT)
        assert one.wait_for_exit() == 0

    def serve(model: str, **settings: Any) -> Up:
        if started:
            end(started[-1])
        environment = {f"FLOTILLA_{name.upper()}": str(each) for name, each in settings.items()}
        arguments = ("--served-model-name", model)
        started.append(Up(tmp_path, *arguments, command=REAL, **environment))
        return started[-1].wait_until_ready()

    yield serve
    for one in started:
        one.kill()


def listed(one: Up) -> list[str]:
    return [each["id"] for each in http.get(f"{one.url}/v1/models").json()["data"]]


def chats(one: Up) -> None:
    """A chat without a model's name is answered."""
    shown = run_flotilla("chat", "hello", environment={"FLOTILLA_URL": one.url}).stdout
    assert "[simulated]" in shown


def test_the_model_of_an_earlier_run_is_forgotten_unless_it_has_jobs(start: Start) -> None:
    slow = {"sim_step_ms": 200, "drain_deadline_s": 0}
    first = start("a-model", **slow)
    waiting = submit(first, chat(max_tokens=200, ignore_eos=True) | {"model": "a-model"})
    wait_for(lambda: states(first, [waiting]) == {"in_progress"}, "it runs")
    second = start("b-model")
    assert listed(second) == ["b-model", "a-model"]
    chats(second)
    assert states(second, [waiting]) == {"queued"}
    third = start("a-model", sim_step_ms=1)
    assert listed(third) == ["a-model"]
    wait_for(lambda: states(third, [waiting]) == {"completed"}, "its worker has done the job")
    chats(third)
    run_flotilla("doctor", environment={"FLOTILLA_URL": third.url})
    lost = http.post(f"{third.url}/v1/chat/completions", json=chat() | {"model": "b-model"})
    assert lost.status_code == 404
