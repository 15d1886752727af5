"""Which blocks of prompts and answers the simulated engine still holds: an LRU of chained hashes.

It is for load tests of one tenant: tenants with equal prompts share blocks, which vLLM's cache
salts prevent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from hashlib import blake2b

BLOCK_TOKENS = 512


def chained_hashes(text: bytes, block_bytes: int) -> Iterator[bytes]:
    """The hash of each block, which covers all blocks before it; the last block may be short."""
    running = blake2b(digest_size=16)
    for at in range(0, len(text), block_bytes):
        running.update(text[at : at + block_bytes])
        yield running.copy().digest()


class PrefixCache:
    """Holds the last used blocks. A block's hash must cover all blocks before it."""

    def __init__(self, n_blocks: int) -> None:
        self._n_blocks = n_blocks
        self._blocks: OrderedDict[Hashable, None] = OrderedDict()

    def use(self, hashes: Sequence[Hashable]) -> int:
        """Hold these blocks, of one prompt; returns how many of its first ones were held before."""
        held = next((n for n, each in enumerate(hashes) if each not in self._blocks), len(hashes))
        for each in reversed(hashes):  # so that the end of a prefix is evicted first
            self._blocks[each] = None
            self._blocks.move_to_end(each)
        while len(self._blocks) > self._n_blocks:
            self._blocks.popitem(last=False)
        return held
