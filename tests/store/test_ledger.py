"""The ledger: all that a tenant keeps in Redis counts, and who keeps most is refused first."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest

from shared.batches.batch import Batch, BatchStatus
from shared.job.errors import FlotillaError, QuotaExceeded, RedisMemoryFull
from shared.job.job import IdempotencyKey
from shared.job.rules import Quotas
from shared.storage import Segment
from shared.store import keys
from shared.store.batch_records import BatchRecords, Change
from shared.store.files import FileRecords, Purpose, StorageQuota, StoredFile
from shared.store.queue import Room
from shared.store.views import kept_of
from tests.harness.servers import RedisServer
from tests.store.conftest import TENANT, Case, make_job, open_case
from tests.store.ledger import check, kept
from tests.store.test_webhooks import Hooks, new_event

KB, MB = 1 << 10, 1 << 20
DAY_S = 86_400
OTHER = "other"


async def run(case: Case, text: str = "x", **changes: Any) -> str:
    """Submit a job, and end it; returns its id."""
    job = await case.submit(stream=False, **changes)
    worker = case.worker()
    (held,) = await worker.claim(1)
    await worker.write(held, text=text)
    await worker.end(held, body=text.encode())
    return job.id


def taken(case: Case) -> int:
    """What all keys take in Redis."""
    names = case.server.scan_iter("*", count=1000)
    return sum(case.server.memory_usage(name, samples=0) for name in names)


async def test_all_of_a_small_job_counts(case: Case) -> None:
    body, metadata = b"x" * 3900, {f"name {n}": "v" * 500 for n in range(16)}
    jobs = [make_job(body=body, metadata=metadata) for _ in range(200)]
    await case.submit_all(jobs)
    assert 0.9 * taken(case) < kept(case.server) < 1.4 * taken(case)
    (shown,) = await kept_of(case.queue, [TENANT])
    assert shown.bytes == kept(case.server)
    worker = case.worker(room=200)
    for held in await worker.claim():
        await worker.write(held, text="y" * 2000)
        await worker.end(held, body=b"z" * 3000)
    assert 0.9 * taken(case) < kept(case.server) < 1.4 * taken(case)
    check(case.server)
    await case.queue.delete(*(job.id for job in jobs))
    assert kept(case.server) == check(case.server) == 0


async def test_a_quota_counts_also_for_who_is_alone(one: RedisServer) -> None:
    async with open_case(one, Quotas(kept_bytes=100 * KB)) as case:
        await case.submit(body=b"x" * 50 * KB)
        with pytest.raises(QuotaExceeded):
            await case.submit(body=b"x" * 50 * KB)


async def test_above_the_mark_who_keeps_most_is_refused_first(case: Case) -> None:
    for tenant, n_bytes in (("a", 400 * KB), ("b", 200 * KB), ("c", 40 * KB)):
        await case.submit(tenant=tenant, body=b"x" * n_bytes)
    largest = kept(case.server, "a")

    async def accepted(fullness: float) -> str:
        """Who may submit a job when so much of the room above the mark is taken."""
        left = round(1000 * KB * (1 - fullness))
        was = int(case.server.hget(keys.of("kept", 0), keys.KEPT_ACCEPTED) or 0)
        case.queue.rooms = [Room(inf, was + left - 1000 * KB, was + left, largest)]
        found = ""
        for tenant in "abcd":
            job = make_job(tenant=tenant)
            (reply,) = case.queue.parse_submit([job], await case.queue.submit(0, [job], 100))
            if isinstance(reply, FlotillaError):
                assert isinstance(reply, RedisMemoryFull)
                continue
            found += tenant
            await case.queue.cancel(tenant, job.id)
            await case.queue.delete(job.id)
            for key in case.server.scan_iter(f"{keys.base(0)}log:*"):
                case.server.delete(key)
            case.sleep(100)
            await case.queue.sweep(0, 100)
        return found

    found = [await accepted(fullness) for fullness in (-0.2, 0.1, 0.6, 0.95, 1.0)]
    assert found == ["abcd", "bcd", "cd", "d", ""]


async def test_a_large_body_counts_before_it_is_stored(case: Case) -> None:
    case.queue.rooms = [Room(quota=MB)]
    refused = make_job(body=b"x" * 2 * MB)
    with pytest.raises(QuotaExceeded):
        await case.submit_all([refused])
    assert not case.server.exists(f"{case.base}body:{refused.id}")
    stored = make_job(body=b"x" * 500 * KB)
    with pytest.raises(FlotillaError):
        await case.submit_all([stored], max_depth=0)
    assert 0 < case.server.ttl(f"{case.base}body:{stored.id}") <= 60
    assert 500 * KB < check(case.server) < 700 * KB
    await case.submit_all([stored])
    assert await case.submit_all([stored]) == [1]  # a repeated call
    assert 500 * KB < check(case.server) < 700 * KB
    assert case.server.ttl(f"{case.base}body:{stored.id}") == -1
    left = make_job(body=b"x" * 200 * KB)
    with pytest.raises(FlotillaError):
        await case.submit_all([left], max_depth=0)
    case.server.delete(f"{case.base}body:{left.id}")
    case.sleep(61)
    await case.queue.sweep(0, 100)
    assert 500 * KB < check(case.server) < 700 * KB


async def test_an_idempotency_key_goes_with_its_job(case: Case) -> None:
    key = IdempotencyKey.of(TENANT, "/jobs", "k", b"")
    job_id = await run(case, idempotency=key)
    await case.queue.delete(job_id)
    assert not [name for name in case.names() if name.startswith("idempotency")]
    first = await case.submit(idempotency=key, keep_s=0.0)
    await case.queue.unwatch(first.id, first.gateway)
    await case.submit(idempotency=key)  # the first one's client has left
    await case.queue.delete(first.id)
    assert [name for name in case.names() if name.startswith("idempotency")]


async def test_what_is_left_of_a_deleted_job_counts_until_it_is_gone(case: Case) -> None:
    job = await case.submit()
    await case.queue.cancel(TENANT, job.id)
    await case.queue.delete(job.id)
    assert 0 < check(case.server) < 2000  # its log: maintenance may count its tokens
    case.server.delete(keys.log(0, job.id))
    case.sleep(61)
    await case.queue.sweep(0, 100)
    assert check(case.server) == 0


async def test_what_a_lost_write_has_left_is_healed(case: Case) -> None:
    jobs = [await case.submit() for _ in range(2)]
    case.server.hincrby(keys.of("kept", 0), TENANT, 1000)
    for job in jobs:
        await case.queue.cancel(TENANT, job.id)
        case.server.delete(keys.job(0, job.id), keys.log(0, job.id))
    case.sleep(1000)
    await case.queue.sweep(0, 100)
    assert check(case.server) == 0


# --- what is not a job ---


def file(number: int, name: str = "f", tenant: str = TENANT) -> StoredFile:
    segments = (Segment("b", 1),)
    return StoredFile(f"file-{number:024x}", tenant, name, Purpose.BATCH, 1.0, None, segments)


def batch(number: int, **changes: Any) -> Batch:
    fields: dict[str, Any] = {
        "id": f"batch_{number:024x}",
        "tenant": TENANT,
        "endpoint": "/v1/chat/completions",
        "input_file_id": file(1).id,
        "window_s": 86_400.0,
        "completion_window": "24h",
        "metadata": {f"name {n}": "v" * 500 for n in range(16)},
        "created_at": 1.0,
        "status": BatchStatus.VALIDATING,
        "output_ttl_s": None,
    }
    return Batch(**(fields | changes))


async def test_batches_count_until_they_expire(case: Case) -> None:
    batches = BatchRecords(case.queue)
    await FileRecords(case.queue).add(file(1))
    of_file = kept(case.server)
    await batches.create(batch(1), 10)
    made = kept(case.server)
    assert 7000 < made - of_file < 20_000
    owned = await batches.own(batch(1).id, "p", 5.0)
    assert owned is not None
    output = tuple(Segment(f"blob {n} {'x' * 60}", n) for n in range(100))
    change = Change(status=BatchStatus.IN_PROGRESS, output=output)
    await batches.change(batch(1).id, owned[0], 1, change)
    assert 7000 < kept(case.server) - made < 40_000
    await batches.change(batch(1).id, owned[0], 2, Change(status=BatchStatus.COMPLETED))
    case.server.delete(f"{case.base}batch:{batch(1).id}", f"{case.base}batch_output:{batch(1).id}")
    case.sleep(31 * DAY_S)
    await case.queue.sweep(0, 100)
    assert kept(case.server) == of_file
    assert not case.server.exists(keys.first("batches", TENANT))
    case.queue.rooms = [Room(quota=10 * KB)]
    with pytest.raises(QuotaExceeded):
        await batches.create(batch(2), 10)


async def test_records_of_files_count_but_never_stop_a_batch(case: Case) -> None:
    files = FileRecords(case.queue)
    await files.add(file(1, "n" * 5000))
    await files.add(file(1, "n" * 5000))
    assert 5000 < kept(case.server) < 8000
    case.queue.rooms = [Room(quota=10 * KB)]
    quota = StorageQuota(0, 100)
    with pytest.raises(QuotaExceeded):
        await files.add(file(2, "n" * 9000), quota)
    await files.add(file(2, "n" * 9000))  # an output
    for number in (1, 2):
        assert await files.delete(TENANT, file(number).id)
    assert kept(case.server) == 300 == check(case.server)  # their places in lists, for an hour
    case.server.delete(*case.server.scan_iter(f"{case.base}gone:*"))
    case.sleep(4000)
    await case.queue.sweep(0, 100)
    assert check(case.server) == 0


async def test_deliveries_count(case: Case) -> None:
    hooks = Hooks(case)
    endpoint, second = await hooks.create(), await hooks.create()
    of_endpoints = kept(case.server)
    await hooks.tell(endpoint, second, events=[new_event() for _ in range(100)])
    both = kept(case.server) - of_endpoints
    assert 200 * 300 < both < 200 * 1000
    assert await hooks.records.delete(TENANT, second.id)
    assert kept(case.server) < of_endpoints + both / 2 + 200
    # Where Redis is almost full, those of the tenant that keeps most are dropped.
    case.queue.rooms = [Room(mark=0, most=1000, largest=kept(case.server))]
    assert await hooks.tell(endpoint) == 1
    case.queue.rooms = [Room(quota=1)]
    assert await hooks.tell(endpoint) == 0
    assert await hooks.records.delete(TENANT, endpoint.id)
    assert kept(case.server) == 300 == check(case.server)  # their places in lists


@pytest.mark.seeds(6)
async def test_the_ledger_never_drifts(case: Case, seed: int) -> None:
    """Jobs of two tenants in any order, and calls that are sent twice."""
    worker, seeded = case.worker(), random.Random(seed)
    ended: list[str] = []
    for _ in range(80):
        act = seeded.choice(["submit", "submit", "claim", "write", "end", "cancel", "delete"])
        held = seeded.choice(list(worker.jobs.values())) if worker.jobs else None
        if act == "submit":
            size = seeded.choice([10, 5000, 100_000])
            job = make_job(body=b"x" * size, stream=False, tenant=seeded.choice([TENANT, OTHER]))
            for _ in range(seeded.choice([1, 2])):
                await case.submit_all([job])
        elif act == "claim":
            await worker.claim(3)
        elif act == "write" and held:
            await worker.write(held, text="y" * seeded.choice([1, 5000]))
        elif act == "end" and held:
            await worker.end(held, body=b"y" * seeded.choice([10, 9000]))
            ended.append(held.id)
        elif act == "cancel" and held:
            await case.queue.cancel(held.tenant, held.id)
            worker.jobs.pop(held.id)
            ended.append(held.id)
        elif act == "delete" and ended:
            await case.queue.delete(ended.pop(seeded.randrange(len(ended))))
        check(case.server)
