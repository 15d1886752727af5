"""The check that the ledger equals the logs finds what is wrong."""

from __future__ import annotations

from typing import Any

from load_tests.faults.kills.ledger_check import Logged, compare
from shared.job.states import JobState
from shared.tenants.usage import Owner, UsageEntry

OWNER = Owner("t", "key_1", "m")
LOGGED = {"job_1": Logged(OWNER, 5, 7)}


def entry(**changes: Any) -> UsageEntry:
    fields = {"id": "1-0", "job": "job_1", "owner": OWNER, "state": JobState.COMPLETED}
    tokens = {"prompt_tokens": 5, "cached_tokens": 0, "output_tokens": 7}
    rest = {"queue_us": 1, "engine_us": 2, "wasted_us": 0, "reserved": ""}
    return UsageEntry(**(fields | tokens | rest | changes))


def test_a_ledger_that_equals_the_logs() -> None:
    assert compare([entry(), entry(job="job_2")], LOGGED) == []
    unreported = entry(prompt_tokens=None, cached_tokens=None, output_tokens=None)
    assert compare([unreported], LOGGED) == []


def test_what_is_wrong_with_a_ledger() -> None:
    assert compare([], LOGGED) == ["job_1 is not in the ledger"]
    assert compare([entry(), entry(id="2-0")], LOGGED) == ["job_1 is in the ledger more than once"]
    (wrong,) = compare([entry(output_tokens=8)], LOGGED)
    assert wrong == "job_1 counts (5, 8) tokens, its log has (5, 7)"
    (wrong,) = compare([entry(owner=Owner("t", "", "m"))], LOGGED)
    assert wrong.startswith("job_1 counts for")
