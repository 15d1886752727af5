"""What a gateway finds right and wrong with its fleet, and what to do: for `flotilla doctor`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from typing import Literal, NamedTuple, Self

from fastapi import APIRouter
from pydantic import BaseModel

from gateway.core.context import Gateway, GatewayDep
from gateway.core.key_refresh import KeyRefresh
from gateway.core.limits_object import used_objects
from gateway.files.files import Files
from gateway.http.query import known_only
from gateway.ops.overview.models import Problem
from gateway.ops.overview.problems import check
from gateway.ops.overview.sampler import Sampler
from shared.fleet import limits
from shared.fleet.limits import Level
from shared.job.errors import OverviewFailed, StorageNotConfigured, StorageUnavailable
from shared.platform.durations import duration
from shared.platform.tasks import run_together
from shared.store.batch_records import BatchRecords, OpenBatch
from shared.store.errors import StoreError
from shared.store.upkeep import MaintenanceRuns
from shared.store.usage import UsageRecords
from shared.store.webhooks import Deliveries
from shared.tenants.rate_limits import key_name, tenant_name

router = APIRouter(prefix="/admin", tags=["operators"], dependencies=[known_only])

BATCHES, FILES, PRUNE = "batches", "files", "prune"
"""Tasks of maintenance."""
_FIRST_SWEEP_S = 60.0
"""The first `files` comes so long after the first `prune` at most."""
_NEARLY = 0.9
"""Of a budget."""


class Finding(BaseModel):
    """The result of one check."""

    name: str
    state: Level
    text: str
    remedy: str = ""
    """What to do; empty if nothing is wrong."""

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """What is wrong."""
        return cls(name=problem.kind, state=problem.level, text=problem.sentence, remedy=problem.do)


class FindingList(BaseModel):
    """All findings."""

    object: Literal["list"] = "list"
    at: float
    """Unix seconds by Redis' clock."""
    data: list[Finding]


@router.get("/doctor")
async def get_findings(gateway: GatewayDep) -> FindingList:
    """Checks the fleet, the storage (a blob is written and deleted), batches, webhooks, the sums of
    use, and keys; what is wrong comes with what to do."""
    checks = {
        "fleet": _fleet,
        "storage": _storage,
        "webhooks": _webhooks,
        "usage": _usage,
        "keys": _keys,
    }
    found = await run_together(*(_tried(gateway, *each) for each in checks.items()))
    return FindingList(at=gateway.fleet.now_s(), data=list(chain.from_iterable(found)))


async def _tried(
    gateway: Gateway, name: str, findings: Callable[[Gateway], Awaitable[list[Finding]]]
) -> list[Finding]:
    try:
        return await findings(gateway)
    except (StoreError, OverviewFailed) as error:
        remedy = "First do what stands here for Redis; else see the gateway's log."
        text = f"not read: {error}"
        return [Finding(name=name, state=Level.WARNING, text=text, remedy=remedy)]


async def _fleet(gateway: Gateway) -> list[Finding]:
    verdict = json.loads(await gateway.of(Sampler).latest())["verdict"]
    problems = map(Problem.model_validate, verdict["problems"])
    return _or_fine(problems, "fleet", verdict["sentence"])


# --- storage and batches ---


class StorageState(NamedTuple):
    """What is known of the storage and of the batches."""

    error: str
    """Why no file can be stored; empty if files can be."""
    space: tuple[int, int] | None
    """Free and all bytes of its disk; None: a bucket."""
    batches: Sequence[OpenBatch]
    served: frozenset[str]
    """Models for which a worker is ready."""
    ages_s: Mapping[str, float]
    """How long ago maintenance has done each of its tasks."""
    configured: bool = True
    """There is a storage."""


async def _storage(gateway: Gateway) -> list[Finding]:
    error, space, configured = "", None, True
    try:
        space = await _try_storage(gateway)
    except StorageNotConfigured:
        configured = False
    except StorageUnavailable as unavailable:
        error = unavailable.cause or str(unavailable)
    runs, fleet = await MaintenanceRuns(gateway.queue.servers).all(), gateway.fleet
    served = (name for name, model in fleet.models.items() if not fleet.wait_reason(model.pool))
    state = StorageState(
        error=error,
        space=space,
        batches=await BatchRecords(gateway.queue).open_now(),
        served=frozenset(served),
        ages_s={task: fleet.now_s() - done_s for task, done_s in runs.items()},
        configured=configured,
    )
    return storage_findings(state)


async def _try_storage(gateway: Gateway) -> tuple[int, int] | None:
    """Write a blob and delete it; the space of the storage."""
    storage = await gateway.of(Files).ready(just_now=True)
    name = f"probes/{gateway.id}"
    await storage.write_bytes(name, b"1")
    await storage.delete([name])
    return await storage.space()


def storage_findings(state: StorageState) -> list[Finding]:
    """What is wrong with files and batches, the worst first, and what is not."""
    found = [*(_of_storage(state) if state.configured else ()), *_of_batches(state)]
    found.sort(key=lambda problem: problem.level is not Level.PROBLEM)
    fine = []
    if not state.configured:
        text = "files and batches are off: the gateway's FLOTILLA_STORAGE_URL is empty"
        fine.append(Finding(name="storage", state=Level.OK, text=text))
    elif not found:
        room = f", {state.space[0] / 2**30:,.0f} GiB are free" if state.space else ""
        fine.append(Finding(name="storage", state=Level.OK, text=f"files can be stored{room}"))
    if state.batches and not found:
        text = f"{len(state.batches)} advance"
        fine.append(Finding(name="batches", state=Level.OK, text=text))
    return [*fine, *map(Finding.of, found)]


def _of_storage(state: StorageState) -> Iterator[Problem]:
    error, ages_s = state.error[:300], state.ages_s
    yield from check(limits.STORAGE_UNAVAILABLE, bool(error), {"why": error})
    if state.space:
        free, total = state.space
        share = 1 - free / max(1, total)
        words = {"share": share, "free": f"{free / 2**30:.1f}"}
        yield from check(limits.STORAGE_FULL, share, words)
    runs = ages_s.get(PRUNE, 0.0) > _FIRST_SWEEP_S
    swept_s = ages_s.get(FILES, inf if runs else 0.0)
    yield from check(limits.STORAGE_NOT_SWEPT, swept_s, {"age": _age(swept_s)})


def _of_batches(state: StorageState) -> Iterator[Problem]:
    if not state.batches:
        return
    late_s, n_open = state.ages_s.get(BATCHES, inf), len(state.batches)
    words = {
        "age": _age(late_s).capitalize(),
        "batches": "1 batch has" if n_open == 1 else f"{n_open} batches have",
    }
    yield from check(limits.BATCHES_LATE, late_s, words)
    for batch in state.batches:
        if not batch.model or batch.model in state.served:
            words = {"batch": batch.id, "age": duration(batch.idle_s)}
            yield from check(limits.BATCH_STUCK, batch.idle_s, words)


def _age(seconds: float) -> str:
    return "so far" if seconds == inf else f"for {duration(seconds)}"


# --- webhooks, sums of use, keys ---


async def _webhooks(gateway: Gateway) -> list[Finding]:
    """Whether events reach the webhooks of all tenants."""
    backlog = await Deliveries(gateway.queue).backlog()
    events, behind = backlog.ended, backlog.endpoints
    words = {
        "events": "1 event waits" if events == 1 else f"{events} events wait",
        "age": duration(backlog.oldest_s),
    }
    to = "1 endpoint" if behind == 1 else f"{behind} endpoints"
    text = f"events are on their way to {to}" if behind else "none waits"
    return _or_fine(check(limits.WEBHOOKS_LATE, backlog.oldest_s, words), "webhooks", text)


async def _usage(gateway: Gateway) -> list[Finding]:
    """Whether the ledger, an entry for each job that has ended, is added up."""
    backlog = await UsageRecords(gateway.queue).backlog()
    entries, dropped = backlog.entries, backlog.dropped
    words = {
        "jobs": "1 job" if entries == 1 else f"{entries:,} jobs",
        "age": duration(backlog.oldest_s),
    }
    lost = f"; jobs dropped ever: {dropped}" if dropped else ""
    text = f"all jobs are in the sums{lost}"
    return _or_fine(check(limits.USAGE_LATE, backlog.oldest_s, words), "usage", text)


def _or_fine(problems: Iterable[Problem], name: str, text: str) -> list[Finding]:
    found = [Finding.of(problem) for problem in problems]
    return found or [Finding(name=name, state=Level.OK, text=text)]


async def _keys(gateway: Gateway) -> list[Finding]:
    """How many there are, and who has used nearly all of a budget: that is no fault of a fleet."""
    keys = (await gateway.of(KeyRefresh).records.read()).keys.values()
    n_keys = "1 key" if len(keys) == 1 else f"{len(keys)} keys"
    found = [Finding(name="keys", state=Level.OK, text=f"{n_keys} in Redis")]
    limited = [(f"the key {key.id} of {key.tenant}", key_name(key.id), key.limits) for key in keys]
    of_tenants = gateway.keys.tenant_limits.items()
    limited += [(tenant, tenant_name(tenant), most) for tenant, most in of_tenants]
    limited = [each for each in limited if each[2].tokens_per_day or each[2].tokens_per_month]
    all_used = await used_objects(gateway, [name for _, name, _ in limited])
    for (whose, _, most), used in zip(limited, all_used, strict=True):
        for tokens, budget, span in (
            (used.tokens_today, most.tokens_per_day, "day"),
            (used.tokens_this_month, most.tokens_per_month, "month"),
        ):
            if tokens > _NEARLY * budget > 0:
                text = f"{whose} has used {tokens:,} of {budget:,} tokens/{span}"
                found.append(Finding(name="budgets", state=Level.OK, text=text))
    return found
