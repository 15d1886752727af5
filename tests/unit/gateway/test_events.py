"""GET /jobs/{id}/events: how log events are rendered, and what event ids mean."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.core.job_events import EventPosition, _render, events
from gateway.core.reader import LogEvent
from shared.job.errors import BadRequest
from shared.job.job import Job
from shared.job.log import Delta, Prompt
from shared.job.states import JobState
from shared.store.answers import Body
from tests.unit.gateway.jobs import job


def test_steps_that_were_logged_together_become_one_text_per_choice() -> None:
    records = [
        Prompt(0, 3),
        Delta(0, 0, (1,), "He"),
        Delta(0, 1, (5,), "Hi"),
        Delta(0, 0, (2,), "llo"),
        Delta(0, 1, (6,), "!"),
    ]
    ((event, event_id),) = _render(LogEvent(7, "", records))
    assert event_id == "7"
    lines = event.decode().split("\n")
    assert lines[:2] == ["event: delta", "id: 7"]
    assert json.loads(lines[2].removeprefix("data: ")) == {
        "choices": [{"index": 0, "text": "Hello"}, {"index": 1, "text": "Hi!"}]
    }


def test_an_entry_without_text_is_no_event() -> None:
    assert _render(LogEvent(1, "", [Prompt(0, 3)])) == []
    assert _render(LogEvent(1, "claimed", [])) == []


@pytest.mark.parametrize(
    ("event_id", "position"),
    [("0", (0, 0)), ("7", (7, 0)), ("7.1", (6, 1)), ("1.12", (0, 12)), ("007", (7, 0))],
)
def test_an_event_id_is_the_position_to_continue_from(
    event_id: str, position: tuple[int, int]
) -> None:
    assert EventPosition.parse(event_id) == position


@pytest.mark.parametrize(
    "event_id",
    ["", "-1", "x", "1.", ".1", "1.x", "1.2.3", " 1", "1e3", "9" * 16, "1.-1", "1,2", "²", "1.²",
     "0.1"],
)  # fmt: skip
def test_any_other_event_id_is_refused(event_id: str) -> None:
    with pytest.raises(BadRequest, match="Last-Event-ID"):
        EventPosition.parse(event_id)


@pytest.mark.parametrize("event_id", ["0", "1", "7", "7.2", "1.1"])
def test_a_position_is_written_as_it_is_read(event_id: str) -> None:
    assert str(EventPosition.parse(event_id)) == event_id


def test_choices_of_a_further_prompt_name_it() -> None:
    records = [Delta(call, choice, (1,), "x") for call in (0, 1) for choice in (0, 1)]
    ((event, _),) = _render(LogEvent(7, "", records))
    choices = json.loads(event.split(b"data: ")[1])["choices"]
    assert [(each.get("prompt"), each["index"]) for each in choices] == [
        *((None, 0), (None, 1)),
        *((1, 0), (1, 1)),
    ]


class Ended:
    """A relay, its reader and a queue: the job's end was published; its record has `state`."""

    keepalive_s = 1.0

    def __init__(self, state: JobState, output: Sequence[Delta] = ()) -> None:
        self.relay = self.queue = self.settings = self
        self.gateway_id = "gw"
        self._state = state
        self._output = list(output)

    def open(self, *_: Any, **__: Any) -> Any:
        return self

    def close(self, *_: Any, **__: Any) -> None:
        pass

    async def next(self, *_: Any) -> list[LogEvent]:
        return [LogEvent(7, "completed", self._output)]

    async def get(self, job_id: str) -> list[Job]:
        return [job(state=self._state)]

    async def job_object(self, found: Job) -> tuple[Body, dict[str, str]]:
        return Body(b"{}"), {}


@pytest.mark.parametrize(
    ("state", "expected"),
    [(JobState.COMPLETED, b"event: completed\nid: end\n"), (JobState.IN_PROGRESS, b"stream_reset")],
)
async def test_an_end_that_redis_has_lost_is_an_error(state: JobState, expected: bytes) -> None:
    """A replica that is the master now may lack the last writes, which were published."""
    context: Any = Ended(state)
    parts = [part async for part in events(context, job(), EventPosition(0, 0))]
    assert expected in b"".join(parts[-3:])
    assert (b"id: end" in b"".join(parts)) == (state is JobState.COMPLETED)


@pytest.mark.parametrize(
    ("after", "output", "expected"),
    [
        (6, [Delta(0, 0, (1,), "x")], [b"delta", b"completed"]),
        (7, [Delta(0, 0, (1,), "x")], [b"completed"]),
        (7, [], [b"error"]),  # it had another entry with this number
    ],
)
async def test_a_client_may_have_what_came_with_the_end(
    after: int, output: list[Delta], expected: list[bytes]
) -> None:
    context: Any = Ended(JobState.COMPLETED, output)
    parts = [part async for part in events(context, job(), EventPosition(after, 0))]
    names = re.findall(rb"event: (\w+)", b"".join(parts))
    assert [name for name in names if name not in (b"queued", b"in_progress")] == expected
