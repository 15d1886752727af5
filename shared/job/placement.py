"""Placement: a job goes to a worker whose prefix cache may hold the beginning of its prompt.

The queue notes which worker has run a prefix last: its warm worker. It is told of a submitted
job if it has room, and for a moment no other one takes it; a claim takes, of the first waiting jobs
of a tenant, the one for whose prompt its worker is warm, else the oldest.
`scripts/common/placement.lua` keeps the map. A prefix is known by a hash of its text and of its
tenant, since the caches of tenants are apart.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

BLOCK_BYTES: Final = 2048
"""Of text, about 512 tokens."""
DEPTHS: Final = (2, 8, 32, 128)
"""The lengths of the prefixes that are noted, in blocks: a shorter one is computed soon. On
Mooncake's traces more lengths bring no more hits."""
HASH_BYTES: Final = 8
LEAST_BYTES: Final = DEPTHS[0] * BLOCK_BYTES
"""A shorter text has no prefix."""
MOST_PREFIXES: Final = 32_768
"""Of one pool and shard in one generation of the map; there are two, of 5 MB each at most."""
KEPT_S: Final = 86_400
"""For so long a generation is kept."""
SLOT_BLOCKS: Final = 0.5
"""A warm worker with one job more, and one free slot less, than another one has to hold so many
blocks more of the prompt. Without it all jobs with one system prompt would go to one worker."""
ALL_SLOTS_BLOCKS: Final = 8
"""One that is full where another one is idle has to hold so many at most: workers have 8 slots, or
256."""


class PlacementRules(NamedTuple):
    """How a claim chooses among waiting jobs."""

    patience_s: float = 0.05
    """For so long a new job is left to an idle worker that is warm for it."""
    overtake_s: float = 10.0
    """A job overtakes no job of its tenant that came earlier by more than this."""
    window: int = 32
    """How many of a tenant's waiting jobs a claim looks at; 0: there is no placement."""


def prefix_hashes(text: memoryview, tenant: str) -> bytes:
    """The hashes of the prefixes of a prompt, the shortest first, `HASH_BYTES` each."""
    found, at = bytearray(), 0
    digest = blake2b(tenant.encode(), digest_size=HASH_BYTES, person=b"prefix")
    for depth in DEPTHS:
        end = depth * BLOCK_BYTES
        if end > len(text):
            break
        digest.update(text[at:end])
        found += digest.digest()
        at = end
    return bytes(found)
