"""What `flotilla doctor` concludes from what it has read. Pure: every finding with its mend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

_MAX_SKEW_S = 2.0
_MAX_MEMORY_USE = 0.8
_ADMIN_KEY = (
    "give an operator's key: --api-key-file, FLOTILLA_API_KEY (FLOTILLA_ADMIN_KEYS has them)"
)
_MENDS = {
    "redis": "start Redis, or set FLOTILLA_REDIS_URL of the gateway to one that accepts writes",
    "eviction": "set maxmemory-policy to noeviction in Redis",
    "format": "run gateways, workers and maintenance of one release, or use an empty Redis",
    "relay": "check that the gateway reaches Redis' pub/sub, and its log for the reason",
    "fleet": "check the connection between the gateway and Redis",
    "tasks": "restart this gateway; its log has the error",
}
"""By the name of a check of /readyz."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    level: Level
    text: str
    mend: str = ""
    """What to do; empty if nothing is wrong."""

    def to_json(self) -> dict[str, str]:
        """For programs."""
        return asdict(self)


@dataclass
class Facts:
    """What was read; None: it could not be, and `errors` has why."""

    url: str
    version: str
    """Of this command."""
    now_s: float
    ready: Mapping[str, Any] | None = None
    versions: Mapping[str, Any] | None = None
    models: Sequence[Mapping[str, Any]] | None = None
    overview: Mapping[str, Any] | None = None
    errors: dict[str, str] = field(default_factory=dict)
    """By the name of the field."""


def findings(facts: Facts) -> Iterator[Finding]:
    """All checks, in the order in which people would make them."""
    if facts.ready is None:
        yield Finding(
            "gateway",
            Level.PROBLEM,
            facts.errors.get("ready", f"{facts.url} does not answer"),
            "start one with `flotilla up`, or name another with --url or FLOTILLA_URL",
        )
        return
    yield Finding("gateway", Level.OK, f"{facts.url} answers")
    yield from _checks(facts.ready.get("checks", {}))
    yield _key(facts)
    yield from _versions(facts)
    yield from _models(facts)
    if facts.overview is None:
        error = facts.errors.get("overview", "")
        yield Finding("overview", Level.WARNING, f"not read: {error}", _ADMIN_KEY)
        return
    yield _clock(facts.overview["at"], facts.now_s)
    yield _memory(facts.overview.get("redis") or {})
    yield from _workers(facts.overview)
    yield from _problems(facts.overview["verdict"]["problems"])
    yield from _pools(facts.overview["pools"])
    yield _letters(facts.overview.get("dead_letters") or 0)


def _checks(checks: Mapping[str, str]) -> Iterator[Finding]:
    for name, problem in checks.items():
        if problem == "ok":
            yield Finding(name, Level.OK, "ok")
        else:
            mend = _MENDS.get(name, "see the gateway's log")
            yield Finding(name, Level.PROBLEM, problem, mend)


def _key(facts: Facts) -> Finding:
    if facts.models is None:
        return Finding(
            "key",
            Level.PROBLEM,
            facts.errors.get("models", "the key was refused"),
            "give a key of FLOTILLA_API_KEYS: --api-key-file, FLOTILLA_API_KEY",
        )
    return Finding("key", Level.OK, "the gateway accepts this client")


def _versions(facts: Facts) -> Iterator[Finding]:
    if facts.versions is None:
        return
    version = facts.versions["version"]
    if version != facts.version:
        yield Finding(
            "version",
            Level.WARNING,
            f"the gateway is {version}, this command {facts.version}",
            f"install flotilla {version} here, or update the gateway",
        )
    else:
        yield Finding("version", Level.OK, version)
    engines = facts.versions["engines"]
    if any("simulated" in engine for engine in engines):
        yield Finding(
            "engine",
            Level.WARNING,
            "the engine is SIMULATED: no model runs, every answer is made up",
            "for real answers start workers without FLOTILLA_ENGINE=simulated",
        )
    elif len(engines) > 1:
        yield Finding(
            "engine",
            Level.WARNING,
            "workers have different engines: " + ", ".join(sorted(engines)),
            "update the workers one after the other: `flotilla workers drain`",
        )
    elif engines:
        yield Finding("engine", Level.OK, next(iter(engines)))


def _models(facts: Facts) -> Iterator[Finding]:
    if facts.models is None:
        return
    if not facts.models:
        yield Finding(
            "models",
            Level.PROBLEM,
            "no worker has registered a model",
            "start a worker: `flotilla worker --model ...`; its log shows how far it is",
        )
    for model in facts.models:
        about = model.get("flotilla") or {}
        if about.get("ready", True):
            yield Finding("model", Level.OK, f"{model['id']} is served")
        else:
            why = about.get("wait_reason") or "no worker is ready"
            yield Finding(
                "model",
                Level.PROBLEM,
                f"{model['id']}: {why}",
                "see `flotilla workers ls`; start a worker of its pool if there is none",
            )


def _clock(at_s: float, now_s: float) -> Finding:
    skew_s = abs(now_s - at_s)
    if skew_s <= _MAX_SKEW_S:
        return Finding("clock", Level.OK, "this machine and the fleet agree")
    return Finding(
        "clock",
        Level.WARNING,
        f"this machine and the fleet differ by {skew_s:.0f} s",
        "synchronise the clocks (NTP); deadlines are counted by Redis' clock",
    )


def _memory(redis: Mapping[str, Any]) -> Finding:
    used, most = redis.get("used_memory") or 0, redis.get("max_memory") or 0
    text = f"{used / 1e6:.0f} MB used" + (f" of {most / 1e6:.0f} MB" if most else "")
    if most and used > _MAX_MEMORY_USE * most:
        mend = "raise Redis' maxmemory, or shorten FLOTILLA_RESULT_TTL_S"
        return Finding("memory", Level.PROBLEM, text, mend)
    return Finding("memory", Level.OK, text)


def _workers(overview: Mapping[str, Any]) -> Iterator[Finding]:
    workers = overview["workers"]
    serving = sum(worker["state"] in ("ready", "busy") for worker in workers)
    level = Level.OK if serving else Level.PROBLEM
    mend = "" if serving else "start workers: `flotilla worker`, or `flotilla up`"
    yield Finding("workers", level, f"{serving} of {len(workers)} ready", mend)


def _problems(problems: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    for problem in problems:
        action = problem.get("action") or {}
        hints = [action.get("text"), problem.get("runbook") and f"see {problem['runbook']}"]
        mend = "; ".join(hint for hint in hints if hint)
        yield Finding(
            problem["kind"],
            Level.PROBLEM if problem["level"] == "problem" else Level.WARNING,
            problem["sentence"],
            mend or "see `flotilla top`",
        )


def _pools(pools: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    for pool in pools:
        if pool["paused"]:
            yield Finding(
                "queue",
                Level.WARNING,
                f"{pool['pool']} is paused: {pool['waiting']} waiting",
                f"flotilla queue resume {pool['pool']}",
            )


def _letters(number: int) -> Finding:
    if not number:
        return Finding("dead letters", Level.OK, "none")
    mend = "flotilla dead ls; then `flotilla dead replay` or `drop`"
    return Finding("dead letters", Level.WARNING, str(number), mend)
