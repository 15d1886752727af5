"""Which job is next, and where: lanes, quotas of tenants, fair shares, and placement.

Fair shares: of the tenants whose jobs wait in a lane, the one with the lowest level is next. A
tenant's level is what it was served lately in all lanes of a pool: tokens of its prompts and twice
those of its answers, over its weight. This is VTC's counter ("Fairness in Serving Large Language
Models", OSDI'24) with two changes: it forgets, and a part of what an answer is expected to cost is
charged as its job is claimed, with more of it where the level is made of few jobs, which forgets
most between two claims. `scripts/common/lines.lua` keeps the levels.

Placement: a job goes to a worker whose prefix cache may hold the beginning of its prompt. The queue
notes which worker has run a prefix last: that worker is warm for the prefix. A submitted job wakes
its warm worker, if that has room, and no other worker may claim the job for a moment. A claim
takes, of the first waiting jobs of a tenant, the one for whose prompt its worker is warm, else the
oldest. `scripts/common/placement.lua` keeps the map. A prefix is known by a hash of its text and of
its tenant, since the caches of tenants are apart.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

PRIORITY: Final = "priority"
DEFAULT: Final = "default"
FLEX: Final = "flex"
CLIENT_LANES: Final = (PRIORITY, DEFAULT, FLEX)
"""The lanes of a pool by OpenAI's names of a `service_tier`: a better one goes before the others,
which keep an eighth of all tokens."""


class Quotas(NamedTuple):
    """How much of one tenant is kept in Redis, and waits, at a time, in one shard."""

    kept_bytes: int = 0
    """Of all its data; 0: a share of Redis' memory."""
    waiting: int = 0
    """Jobs that wait in one lane of a pool; 0: no limit."""

    def of_shard(self, shards: int) -> Quotas:
        """The share of one of so many shards."""
        return Quotas(*(-(-most // shards) for most in self))


NO_QUOTAS = Quotas()

# --- fair shares ---

OUTPUT_COST: Final = 2.0
"""Of a generated token; a token of a prompt costs 1."""
FIRST_TOKENS: Final = 200.0
"""Of prompt and answer each, where a worker has seen no job yet."""
EXPECTED_COST: Final = 2 * FIRST_TOKENS
"""Of a job with so many."""


class ShareRules(NamedTuple):
    """How levels change. With 0, 0 and 1 these are VTC's own rules."""

    half_life_s: float = 20.0
    """In this time a level halves; 0: never. After a short one a burst is forgotten too soon, with
    a long one a tenant that was alone waits longer when others come."""
    ahead: float = 0.5
    """The part of an expected answer that is charged as its job is claimed."""
    lift: float = 0.5
    """A tenant that comes back has at least this part of the lowest level that waits."""

    @property
    def half_life_us(self) -> int:
        """As the scripts get it."""
        return int(self.half_life_s * 1e6)


def cost(prompt_tokens: int, output_tokens: int) -> float:
    """What a job has cost."""
    return prompt_tokens + OUTPUT_COST * output_tokens


# --- placement ---

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
