"""Documents: lists, limits, expiry, and changes at the same time."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest
from pydantic import TypeAdapter
from redis import Redis

from shared.store import keys
from shared.store.documents import Documents, InUse, Kind, LimitReached
from shared.store.errors import StoreUnwritable
from shared.store.queue import Queue

A, B = "a", "b"


class Note(NamedTuple):
    """A document of these tests."""

    tenant: str
    text: str = ""
    numbers: tuple[int, ...] = ()


KIND = Kind("note", TypeAdapter(Note), lambda note: note.tenant, lambda note: len(note.text))


@pytest.fixture
def notes(queue: Queue) -> Documents[Note]:
    return Documents(queue, KIND)


async def listed(
    notes: Documents[Note], after: str = "", *, newest_first: bool = True
) -> tuple[str, bool]:
    page = await notes.page(after, 2, tenant=A, newest_first=newest_first)
    assert page is not None
    return "".join(note.text for note in page[0]), page[1]


async def test_a_document_is_there_until_it_is_deleted(notes: Documents[Note]) -> None:
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
    assert await notes.all() == {}


async def test_nothing_is_left_of_a_deleted_document_but_its_place(
    notes: Documents[Note], queue: Queue, server: Redis
) -> None:
    owner = Documents(queue, Kind("note", TypeAdapter(Note), KIND.tenant, KIND.bytes, owns=["due"]))
    await notes.add("x", Note(A, "text"), expires_at=1.0)
    server.set(keys.first(keys.DUE, "x"), 1)
    await owner.delete("x", lambda _: True)
    left = server.keys(f"{keys.base(0)}*")
    assert left == [keys.first(keys.GONE, "note:x").encode()]
    assert 0 < server.ttl(left[0]) <= 3600


async def test_pages_go_on_behind_deleted_documents(notes: Documents[Note]) -> None:
    for at, name in enumerate("abcdef"):
        await notes.add(name, Note(A, name), at=float(at))
    await notes.add("other", Note(B))
    assert await listed(notes) == ("fe", True)
    assert await listed(notes, "e") == ("dc", True)
    assert await listed(notes, "c") == ("ba", False)
    assert await listed(notes, newest_first=False) == ("ab", True)
    for name in "be":
        await notes.delete(name, lambda _: True)
    assert await listed(notes, "e") == ("dc", True)
    assert await listed(notes, "b", newest_first=False) == ("cd", True)
    assert await notes.page("never", 2, tenant=A) is None
    assert await notes.page("other", 2, tenant=A) is None
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
    notes: Documents[Note], server: Redis
) -> None:
    now_s = await notes.now_s()
    old, new, used = Note(A, "old"), Note(A, "new"), Note(A, "used")
    for note, left_s in ((old, -2), (new, 60), (used, -1)):
        await notes.add(note.text, note, expires_at=now_s + left_s)
    assert await notes.expired(1) == [old]
    assert await notes.expired(10) == [old, used]
    server.sadd(keys.first("document_users", "used"), "batch_1")
    with pytest.raises(InUse):
        await notes.delete("used", lambda _: True)
    assert await notes.expired(10) == [old], "the other is looked at again later"
    await notes.delete("old", lambda _: True)
    assert await notes.used(A) == (2, 7)
    server.delete(keys.first("document_users", "used"))
    assert await notes.delete("used", lambda _: True) == used


async def test_no_change_is_lost(notes: Documents[Note]) -> None:
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


async def test_of_a_change_and_a_deletion_at_once_none_is_half_done(
    notes: Documents[Note],
) -> None:
    for n in range(20):
        await notes.add("x", Note(A))
        changed, deleted = await asyncio.gather(
            notes.change("x", lambda note: note._replace(text="t")),
            notes.delete("x", lambda _: True),
        )
        assert deleted is not None, n
        assert deleted.text == ("" if changed is None else "t")
        assert await notes.all() == {}


async def test_a_malformed_document_hides_no_other(notes: Documents[Note], server: Redis) -> None:
    for text in (b"{}", b"[]", b"\xff", b'["a", 1, 2]', b"[" * 100_000):
        server.hset(keys.first(keys.DOCUMENTS, "note"), f"with {len(text)} bytes", text)
    await notes.add("x", Note(A))
    assert await notes.all() == {"x": Note(A)}
    assert await notes.get("with 2 bytes") is None
    made = await notes.change("with 2 bytes", lambda note: note, new=Note(B))
    assert made == await notes.get("with 2 bytes")


async def test_who_keeps_a_copy_is_told_of_changes(queue: Queue, server: Redis) -> None:
    kind = Kind("note", TypeAdapter(Note), channel=keys.API_KEYS_CHANNEL)
    notes = Documents(queue, kind)
    versions = [await notes.version()]
    await notes.add("x", Note(A))
    versions.append(await notes.version())
    await notes.change("x", lambda note: note._replace(text="t"))
    versions.append(await notes.version())
    await notes.delete("x", lambda _: True)
    versions.append(await notes.version())
    await notes.delete("x", lambda _: True)
    assert versions[0] == b""
    assert len({*versions, await notes.version()}) == 4


async def test_with_a_full_memory_documents_can_be_deleted_only(
    notes: Documents[Note], server: Redis
) -> None:
    await notes.add("x", Note(A))
    server.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnwritable):
            await notes.add("y", Note(A))
        assert await notes.delete("x", lambda _: True)
    finally:
        server.config_set("maxmemory", 0)


async def test_kinds_with_one_writer_need_no_list(notes: Documents[Note]) -> None:
    for name in "abc":
        await notes.set(name, Note(A, name))
    await notes.set("a", Note(B))
    assert await notes.forget_but(["a", "d"]) == 2
    assert await notes.forget_but(["a", "d"]) == 0
    assert await notes.all() == {"a": Note(B)}
