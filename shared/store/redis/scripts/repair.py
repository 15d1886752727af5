"""`repair`: correct what is inconsistent after Redis lost writes or a key was deleted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shared.store.redis.scripts.runner import Scripts


class Repaired(NamedTuple):
    """What was put right in one way."""

    times: int
    ids: tuple[str, ...]
    """Of some of the jobs."""


async def call(
    scripts: Scripts, shard: int, *, word: str, rest: str, members: Iterable[bytes]
) -> dict[str, Repaired]:
    """Check `members` of the key of `word` and `rest` (keys.py): what was done -> how often."""
    reply = await scripts.run("repair", shard, (word, rest, *members))
    done = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
    return {
        what.decode(): Repaired(times, tuple(ids.decode(errors="replace").split()))
        for what, times, ids in done
    }
