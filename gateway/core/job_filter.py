"""The filter language of `GET /jobs?filter=` and of the bulk actions. Pure.

A filter is words with spaces between them; a job has to match all of them.

| word | matches |
|---|---|
| `state:failed`, `state:queued,in_progress` | the state; of several values, any |
| `model:qwen`, `endpoint:chat`, `error:worker_lost` | a part of the name |
| `pool:p`, `lane:flex`, `id:job_000*` | the whole name; `*` stands for any text |
| `worker:w-1` | the same, of the worker of any attempt |
| `tenant:team`, `tenant:*` | jobs of other tenants; needs an operator's key |
| `since:1h`, `until:10m` | submitted within the last hour; before the last 10 minutes |
| `ended:1h` | ended within the last hour |
| `attempts:2` | at least two attempts |
| `metadata.customer:42` | a value of the job's metadata |
| `-lane:flex` | what `lane:flex` does not match |
| `qwen` | a part of the id, the model or the error code |

A time is a number with s, m, h or d, or an ISO date and time (`2026-11-23T12:00`, UTC).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from shared.job.errors import BadRequest
from shared.job.job import Job
from shared.job.rules import CLIENT_LANES
from shared.job.states import JobState

_MAX_LENGTH = 1000
_MAX_STARS = 16
"""`*` in one filter, of all its words together."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])")
_METADATA = "metadata."

Values = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter that was read. Times are Unix seconds by Redis' clock."""

    text: str
    since_s: float = -math.inf
    """Only jobs that were submitted at this time or later."""
    until_s: float = math.inf
    """Only jobs that were submitted before this time."""
    tenants: Values = ()
    """The tenants whose jobs are searched, perhaps with `*`; empty: the caller's own."""
    tests: tuple[Callable[[Job], bool], ...] = ()

    def matches(self, job: Job) -> bool:
        """Whether the job matches all words."""
        return self.since_s <= job.created_at < self.until_s and all(
            test(job) for test in self.tests
        )

    def also(self, state: JobState | None, model: str | None, error: str | None) -> JobFilter:
        """The filter with three further conditions; None: without that one."""
        tests = list(self.tests)
        if state is not None:
            tests.append(lambda job: job.state is state)
        if model is not None:
            tests.append(lambda job: job.model == model)
        if error is not None:
            tests.append(lambda job: job.error_code == error)
        return replace(self, tests=tuple(tests))


def parse_filter(text: str, now_s: float) -> JobFilter:
    """A filter from its text; `now_s` is the time by Redis' clock. Raises BadRequest."""
    if len(text) > _MAX_LENGTH:
        raise BadRequest(f"A filter has at most {_MAX_LENGTH} characters.", "filter")
    if text.count("*") > _MAX_STARS:
        raise BadRequest(f"A filter has at most {_MAX_STARS} `*`.", "filter")
    since_s, until_s = -math.inf, math.inf
    tenants: Values = ()
    tests: list[Callable[[Job], bool]] = []
    for word in text.split():
        negative = word.startswith("-")
        name, colon, value = word.removeprefix("-").partition(":")
        if not colon:
            tests.append(_negated(_has_text(name), negative))
            continue
        values = tuple(each for each in value.split(",") if each)
        if not values:
            raise _bad(word, f"a value is missing behind `{name}:`")
        if name in _TIMES:
            if negative:
                raise _bad(word, f"`{name}` can't be negated")
            at_s = _time(word, value, now_s)
            if name == "since":
                since_s = max(since_s, at_s)
            elif name == "until":
                until_s = min(until_s, at_s)
            else:
                tests.append(_ended_since(at_s))
        elif name == "tenant":
            if negative:
                raise _bad(word, "`tenant` can't be negated")
            tenants += values
        else:
            tests.append(_negated(_test(word, name, values), negative))
    return JobFilter(text, since_s, until_s, tenants, tuple(tests))


def _test(word: str, name: str, values: Values) -> Callable[[Job], bool]:
    if name == "state":
        return _in_state(word, values)
    if name == "lane":
        _check_known(word, values, CLIENT_LANES)
    if name == "attempts":
        if not values[0].isdecimal() or len(values) > 1 or len(values[0]) > 4:
            raise _bad(word, "`attempts` needs one whole number")
        least = int(values[0])
        return lambda job: len(job.attempts) >= least
    if name.startswith(_METADATA):
        key = name.removeprefix(_METADATA)
        return lambda job: _any_is(values, job.metadata.get(key))
    test = _TESTS.get(name)
    if test is None:
        known = [*_TESTS, "state", "attempts", "tenant", *_TIMES, f"{_METADATA}<name>"]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known words: {', '.join(sorted(known))}"
        raise _bad(word, f"there is no word `{name[:64]}`; {hint}")
    return lambda job: test(job, values)


_TIMES = ("since", "until", "ended")
_TESTS: dict[str, Callable[[Job, Values], bool]] = {
    "model": lambda job, values: _any_in(values, job.model),
    "endpoint": lambda job, values: _any_in(values, job.endpoint),
    "error": lambda job, values: _any_in(values, job.error_code),
    "pool": lambda job, values: _any_is(values, job.pool),
    "lane": lambda job, values: _any_is(values, job.lane),
    "id": lambda job, values: _any_is(values, job.id),
    "worker": lambda job, values: any(_any_is(values, each.worker) for each in job.attempts),
}


def _in_state(word: str, values: Values) -> Callable[[Job], bool]:
    _check_known(word, values, [state.value for state in JobState])
    states = {JobState(value) for value in values}
    return lambda job: job.state in states


def _check_known(word: str, values: Values, known: tuple[str, ...] | list[str]) -> None:
    for value in values:
        if value not in known:
            raise _bad(word, f"{value[:64]!r} is none of {', '.join(known)}")


def _any_in(parts: Values, text: str) -> bool:
    return bool(text) and any(part.strip("*").casefold() in text.casefold() for part in parts)


def _any_is(patterns: Values, text: str | None) -> bool:
    return text is not None and any(_is(text, each) for each in patterns)


def _is(text: str, pattern: str) -> bool:
    """Whether it is the whole text; `*` stands for any text, and nothing else is special.

    Not a regular expression: those are compiled, and kept, one for each pattern.
    """
    first, *parts = pattern.split("*")
    if not parts:
        return text == pattern
    *middle, last = parts
    at, end = len(first), len(text) - len(last)
    for part in middle:
        at = text.find(part, at, max(end, 0))
        if at < 0:
            return False
        at += len(part)
    return at <= end and text.startswith(first) and text.endswith(last)


def _has_text(part: str) -> Callable[[Job], bool]:
    return lambda job: _any_in((part,), f"{job.id} {job.model} {job.error_code}")


def _ended_since(at_s: float) -> Callable[[Job], bool]:
    return lambda job: job.finished_at is not None and job.finished_at >= at_s


def _negated(test: Callable[[Job], bool], negative: bool) -> Callable[[Job], bool]:
    return (lambda job: not test(job)) if negative else test


def _time(word: str, value: str, now_s: float) -> float:
    if age := _AGE.fullmatch(value):
        return now_s - float(age[1]) * _UNITS[age[2]]
    try:
        at = datetime.fromisoformat(value)
    except ValueError as error:
        raise _bad(word, "a time is like 30s, 10m, 1h, 2d or 2026-11-23T12:00") from error
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _bad(word: str, why: str) -> BadRequest:
    return BadRequest(f"The word {word[:100]!r} of the filter can't be used: {why}.", "filter")


def tenants_of(job_filter: JobFilter, own: str, known: list[str]) -> list[str]:
    """The tenants whose jobs are searched: the known ones that match, and those that it names."""
    if not job_filter.tenants:
        return [own]
    found = [name for name in sorted({*known, own}) if _any_is(job_filter.tenants, name)]
    named = [name for name in job_filter.tenants if "*" not in name]
    return list(dict.fromkeys([*found, *named]))
