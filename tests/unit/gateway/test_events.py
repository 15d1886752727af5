"""Events: a log entry as its reader sees it."""

from __future__ import annotations

import json

from gateway.streaming.events import _render
from gateway.streaming.log_event import LogEvent
from shared.protocol.frames import FrameKind
from shared.protocol.job_log import Delta, Prompt


def test_steps_that_were_logged_together_are_one_text_per_choice() -> None:
    records = [
        Prompt(0, 3),
        Delta(0, 0, (1,), "He"),
        Delta(0, 1, (5,), "Hi"),
        Delta(0, 0, (2,), "llo"),
        Delta(0, 1, (6,), "!"),
    ]
    (event,) = _render(LogEvent(7, FrameKind.DELTAS, records))
    lines = event.decode().split("\n")
    assert lines[:2] == ["event: delta", "id: 7"]
    assert json.loads(lines[2].removeprefix("data: ")) == {
        "choices": [{"index": 0, "text": "Hello"}, {"index": 1, "text": "Hi!"}]
    }


def test_an_entry_without_text_is_no_event() -> None:
    assert _render(LogEvent(1, FrameKind.DELTAS, [Prompt(0, 3)])) == []
    assert _render(LogEvent(1, FrameKind.STARTED, b"w-1")) == []
