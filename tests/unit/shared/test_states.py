"""The states of a job, as the protocol shows them."""

from __future__ import annotations

import re
from pathlib import Path

from shared.job.states import JobState

PROTOCOL = Path(__file__).parents[3] / "shared" / "store" / "PROTOCOL.md"


def test_the_protocol_shows_every_state_and_which_ones_are_ends() -> None:
    arrows = re.findall(r"^    (\S+) --> (\S+?)(?:: \w+)?$", PROTOCOL.read_text(), re.MULTILINE)
    assert {state for arrow in arrows for state in arrow} == {"[*]", *JobState}
    assert {source for source, target in arrows if target == "[*]"} == {
        state for state in JobState if state.terminal
    }
