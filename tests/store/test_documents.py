"""Documents: lists, limits, expiry, and changes at the same time; and what is kept as documents:
API keys, switches of pools; what operators do."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest
from pydantic import TypeAdapter

from gateway.core.key_refresh import KeyRefresh
from gateway.http.known_keys import KnownKeys
from shared.fleet.worker_answer import WorkerAnswer
from shared.job.errors import QuotaExceeded, Unauthorized
from shared.platform.malformed import MalformedValues
from shared.platform.tasks import end
from shared.store import api_keys, keys
from shared.store.api_keys import KeyRecords
from shared.store.documents import Documents, InUse, Kind, LimitReached
from shared.store.errors import StoreUnwritable
from shared.store.operators import (
    MOST_CHANGES,
    AuditTrail,
    OperationAnswers,
)
from shared.tenants.api_key import ApiKey, digest_of, new_key_id, new_secret
from shared.tenants.rate_limits import NO_LIMITS, RateLimits
from shared.tenants.scopes import ALL_SCOPES
from tests.harness.waiting import eventually
from tests.store.conftest import Case

A, B = "a", "b"


class Note(NamedTuple):
    """A document of these tests."""

    tenant: str
    text: str = ""
    numbers: tuple[int, ...] = ()


def note_kind(**options: object) -> Kind[Note]:
    return Kind(
        "note", TypeAdapter(Note), lambda note: note.tenant, lambda note: len(note.text), **options
    )  # type: ignore[arg-type]


@pytest.fixture
def notes(live: Case) -> Documents[Note]:
    return Documents(live.queue, note_kind())


async def test_a_document_is_there_until_it_is_deleted(notes: Documents[Note], live: Case) -> None:
    note = Note(A, "t", (1, 2))
    for _ in range(2):  # the second time is a repeated call
        await notes.add("x", note)
    assert await notes.get("x") == note
    assert await notes.get("y") is None
    assert await notes.some(["y", "x"]) == await notes.all() == {"x": note}
    assert await notes.known(["y", "x"]) == {"x"}
    assert await notes.delete("x", lambda found: found.tenant == B) is None
    assert await notes.delete("x", lambda found: found.tenant == A) == note
    assert await notes.delete("x", lambda _: True) is None
    await notes.add("y", note, expires_at=1.0)
    await notes.delete("y", lambda _: True)
    left = live.names()
    assert left == {"gone:note:x", "gone:note:y"}, "of a deleted one its place alone is left"
    assert 0 < live.server.ttl(keys.first("gone", "note:x")) <= 3600


async def test_pages_go_on_behind_deleted_documents(notes: Documents[Note]) -> None:
    async def listed(after: str = "", *, newest_first: bool = True) -> tuple[str, bool]:
        page = await notes.page(after, 2, tenant=A, newest_first=newest_first)
        assert page is not None
        return "".join(note.text for note in page[0]), page[1]

    for at, name in enumerate("abcdef"):
        await notes.add(name, Note(A, name), at=float(at))
    await notes.add("other", Note(B))
    assert [await listed(after) for after in ("", "e", "c")] == [
        ("fe", True), ("dc", True), ("ba", False),
    ]  # fmt: skip
    assert await listed(newest_first=False) == ("ab", True)
    for name in "be":
        await notes.delete(name, lambda _: True)
    assert await listed("e") == ("dc", True)
    assert await listed("b", newest_first=False) == ("cd", True)
    for unknown in ("never", "other"):
        assert await notes.page(unknown, 2, tenant=A) is None
    page = await notes.page("", 1, tenant=A, wanted=lambda note: note.text in "ac")
    assert page == ([Note(A, "c")], True)


async def test_limits_are_exact_while_many_are_added_at_once(notes: Documents[Note]) -> None:
    async def add(n: int) -> str:
        try:
            await notes.add(str(n), Note(A, "12345"), most=8, most_bytes=32)
        except LimitReached as reached:
            return f"{reached.what} {reached.has}"
        return "added"

    done = await asyncio.gather(*map(add, range(20)))
    assert (done.count("added"), done.count("bytes 30")) == (6, 14)
    assert await notes.used(A) == (6, 30)
    await notes.add("small", Note(A), most=7, most_bytes=30)
    with pytest.raises(LimitReached, match="number: 7"):
        await notes.add("smaller", Note(A), most=7)
    await notes.add("other", Note(B, "12345"), most=1, most_bytes=5)
    there = await notes.all()
    twice = [*there, *there]
    await asyncio.gather(*(notes.delete(each, lambda note: note.tenant == A) for each in twice))
    assert (await notes.used(A), await notes.used(B)) == ((0, 0), (1, 5))


async def test_what_has_expired_is_found_and_counts_until_it_is_deleted(
    notes: Documents[Note], live: Case
) -> None:
    now_s = await notes.now_s()
    old, new, used = Note(A, "old"), Note(A, "new"), Note(A, "used")
    for note, left_s in ((old, -2), (new, 60), (used, -1)):
        await notes.add(note.text, note, expires_at=now_s + left_s)
    assert await notes.expired(1) == [old]
    assert await notes.expired(10) == [old, used]
    live.server.sadd(keys.first("document_users", "used"), "batch_1")
    with pytest.raises(InUse):
        await notes.delete("used", lambda _: True)
    assert await notes.expired(10) == [old], "the other is looked at again later"
    await notes.delete("old", lambda _: True)
    assert await notes.used(A) == (2, 7)
    live.server.delete(keys.first("document_users", "used"))
    assert await notes.delete("used", lambda _: True) == used


async def test_no_change_is_lost_and_none_is_half_done(notes: Documents[Note]) -> None:
    async def append(n: int) -> Note | None:
        return await notes.change("x", lambda note: note._replace(numbers=(*note.numbers, n)))

    assert await append(0) is None
    await notes.add("x", Note(A))
    await asyncio.gather(*map(append, range(8)))
    found = await notes.get("x")
    assert found is not None
    assert sorted(found.numbers) == list(range(8))
    made = await notes.change("new", lambda note: note._replace(text="t"), new=Note(B))
    assert made == await notes.get("new") == Note(B, "t")
    await notes.delete("new", lambda _: True)
    for n in range(20):
        changed, deleted = await asyncio.gather(
            notes.change("x", lambda note: note._replace(text="t")),
            notes.delete("x", lambda _: True),
        )
        assert deleted is not None, n
        assert deleted.text == ("" if changed is None else "t")
        assert await notes.all() == {}
        await notes.add("x", Note(A))


async def test_a_malformed_document_hides_no_other(notes: Documents[Note], live: Case) -> None:
    for text in (b"{}", b"[]", b"\xff", b'["a", 1, 2]', b"[" * 100_000):
        live.server.hset(keys.first("documents", "note"), f"with {len(text)} bytes", text)
    await notes.add("x", Note(A))
    assert await notes.all() == {"x": Note(A)}
    assert await notes.get("with 2 bytes") is None
    made = await notes.change("with 2 bytes", lambda note: note, new=Note(B))
    assert made == await notes.get("with 2 bytes")


async def test_who_keeps_a_copy_is_told_of_changes(live: Case) -> None:
    notes = Documents(live.queue, note_kind(channel=keys.API_KEYS_CHANNEL))
    versions = [await notes.version()]
    await notes.add("x", Note(A))
    versions.append(await notes.version())
    await notes.change("x", lambda note: note._replace(text="t"))
    versions.append(await notes.version())
    for _ in range(2):
        await notes.delete("x", lambda _: True)
        versions.append(await notes.version())
    assert versions[0] == b""
    assert len({*versions}) == 4


async def test_with_a_full_memory_documents_can_be_deleted_only(alone: Case) -> None:
    notes = Documents(alone.queue, note_kind())
    await notes.add("x", Note(A))
    alone.server.config_set("maxmemory", 1)
    with pytest.raises(StoreUnwritable):
        await notes.add("y", Note(A))
    assert await notes.delete("x", lambda _: True)


async def test_kinds_with_one_writer_need_no_list(notes: Documents[Note]) -> None:
    for name in "abc":
        await notes.set(name, Note(A, name))
    await notes.set("a", Note(B))
    assert [await notes.forget_but(["a", "d"]) for _ in range(2)] == [2, 0]
    assert await notes.all() == {"a": Note(B)}


# --- API keys ---


async def test_keys_and_limits_of_tenants_are_found_and_bounded(
    live: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "MOST_KEYS", 2)
    records, limits = KeyRecords(live.queue), RateLimits(1, 2, 3)
    key = ApiKey("key_1", "t", ALL_SCOPES, "n", ("m",), 1.5, "flk_1234", 1.0, "ops", limits, "00ff")
    others = [key._replace(id=new_key_id(), digest=digest) for digest in ("01ff", "02ff")]
    await records.create(key)
    await records.limit_tenant("t", limits)
    found = await records.read()
    assert (found.keys, found.tenant_limits) == ({b"\0\xff": key}, {"t": limits})
    await records.create(others[0])
    await records.limit_tenant("u", limits)
    with pytest.raises(QuotaExceeded):
        await records.create(others[1])
    with pytest.raises(QuotaExceeded):
        await records.limit_tenant("another", limits)
    # Those that are there can change.
    assert await records.change(key.id, lambda key: key._replace(name="n"))
    await records.limit_tenant("t", NO_LIMITS)
    for each in (key, others[0]):
        await records.revoke(each.id)
    assert (await records.read())[1:] == ({}, {"u": limits})


async def test_a_gateway_learns_of_changes_with_and_without_a_message(live: Case) -> None:
    records, secret = KeyRecords(live.queue), new_secret()
    key = ApiKey(new_key_id(), "team", digest=digest_of(secret.encode()).hex())
    known = KnownKeys({"0" * 64: "ops"})
    refresh = KeyRefresh(live.queue, known, MalformedValues())
    task = asyncio.create_task(refresh.run())
    await refresh.loaded.wait()

    async def becomes(expected: bool) -> None:
        async def is_so() -> bool:
            try:
                return bool(known.find(secret.encode())) is expected
            except Unauthorized:
                return not expected

        await eventually(is_so, f"known: {expected}")

    await records.create(key)
    await becomes(True)
    assert [tenant.name for tenant in known.tenants] == ["ops", "team"]
    # As after a lost message: the version alone tells.
    live.server.hdel(keys.first("documents", "key"), key.id)
    channel = keys.channel_at(0, keys.API_KEYS_CHANNEL)
    live.server.set(keys.first("document_version", channel), "another")
    await becomes(False)
    await records.create(key._replace(id=new_key_id()))
    await becomes(True)
    live.server.flushall()  # a Redis without its data has no keys
    await becomes(False)
    await end([task])


# --- operators ---


async def test_answers_and_changes_of_operators_are_bounded(live: Case) -> None:
    answers, answer = OperationAnswers(live.queue.servers), WorkerAnswer(200, {"a": ["b"]}, 0.5)
    await answers.write("op", "w-1", answer)
    assert (await answers.read("op"), await answers.read("another")) == ({"w-1": answer}, {})
    assert 0 < live.server.ttl(keys.fleet("operation", "op")) <= 600
    audit, operator = AuditTrail(live.queue.servers), ApiKey("key_1", "ops")
    with live.server.pipeline(transaction=False) as pipeline:
        for _ in range(MOST_CHANGES + 500):
            pipeline.xadd(keys.fleet("audit"), {"record": "{}"})
        pipeline.execute()
    for number in range(3):
        await audit.write("key.created", "key_2", operator, "why", number=number)
    assert live.server.xlen(keys.fleet("audit")) < MOST_CHANGES + 200
    first, second = await audit.read("", 2)
    (third,) = await audit.read(second.id, 1)
    assert first[:-1] == ("key.created", "key_2", "ops", "key_1", "why", {"number": 2})
    assert [second.details["number"], third.details["number"]] == [1, 0]
    assert first.at_s >= third.at_s > 0
