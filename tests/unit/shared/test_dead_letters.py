"""The kinds of dead letters, which are labels of a metric and of alerts."""

from __future__ import annotations

import re
from pathlib import Path

from shared.store.redis import dead_letters, scripts


def test_every_kind_that_a_script_writes_is_known() -> None:
    source = "".join(path.read_text() for path in Path(scripts.__file__).parent.rglob("*.lua"))
    calls = re.findall(r"(?<!function )dead_letter\((.*?),", source)
    assert {call.strip("'") for call in calls} == set(dead_letters.KINDS)
