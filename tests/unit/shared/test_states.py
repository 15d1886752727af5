"""The state machine of a job: every state, every event."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.job.states import TRANSITIONS, IllegalTransition, JobEvent, JobState, after

PROTOCOL = Path(__file__).parents[3] / "shared" / "store" / "PROTOCOL.md"

LEADS_TO = {
    ("queued", "claim"): "in_progress",
    ("queued", "cancel"): "cancelled",
    ("queued", "expire"): "expired",
    ("in_progress", "requeue"): "queued",
    ("in_progress", "complete"): "completed",
    ("in_progress", "fail"): "failed",
    ("in_progress", "cancel"): "cancelled",
    ("in_progress", "expire"): "expired",
}
PAIRS = [(state, event) for state in JobState for event in JobEvent]


def diagram() -> str:
    """The state machine as Mermaid, which PROTOCOL.md shows."""
    lines = ["stateDiagram-v2", "    [*] --> queued: submit"]
    for event, (sources, target) in TRANSITIONS.items():
        lines += [f"    {source} --> {target}: {event}" for source in sorted(sources)]
    lines += [f"    {state} --> [*]" for state in JobState if state.terminal]
    return "\n".join(lines)


def test_an_event_leads_where_the_table_says_or_nowhere() -> None:
    for state, event in PAIRS:
        target = LEADS_TO.get((state.value, event.value))
        if target is None:
            with pytest.raises(IllegalTransition, match=f"{event}.*{state}"):
                after(state, event)
        else:
            assert after(state, event) == target


def test_the_table_has_only_existing_states_and_events() -> None:
    assert set(LEADS_TO) <= {(state.value, event.value) for state, event in PAIRS}
    assert set(TRANSITIONS) == set(JobEvent)


def test_a_state_is_terminal_if_nothing_leads_out_of_it() -> None:
    for state in JobState:
        assert state.terminal == (state.value not in {source for source, _ in LEADS_TO})


def test_every_state_can_be_reached_and_left_for_a_terminal_one() -> None:
    reached = {JobState.QUEUED}
    for _ in JobState:
        reached |= {t.target for t in TRANSITIONS.values() if t.sources & reached}
    assert reached == set(JobState)
    for state in JobState:
        outs = {t.target for t in TRANSITIONS.values() if state in t.sources}
        assert state.terminal or any(each.terminal for each in outs)


def test_every_state_and_event_has_a_description() -> None:
    shown = diagram().splitlines()
    assert shown[0] == "stateDiagram-v2"
    arrows = {tuple(re.split(r" --> |: ", line.strip())) for line in shown[1:]}
    assert arrows == (
        {("[*]", "queued", "submit")}
        | {(source, target, event) for (source, event), target in LEADS_TO.items()}
        | {(state.value, "[*]") for state in JobState if state.terminal}
    )


def test_the_protocol_shows_this_state_machine() -> None:
    blocks = re.findall(
        r"^```mermaid\n(stateDiagram-v2\n.*?)\n```$", PROTOCOL.read_text(), re.MULTILINE | re.DOTALL
    )
    assert blocks, "PROTOCOL.md has no ```mermaid block that begins with stateDiagram-v2"
    assert blocks == [diagram()], f"put this into PROTOCOL.md:\n{diagram()}"
