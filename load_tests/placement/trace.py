"""Mooncake's traces (FAST'25): calls whose prompts are given as hashes of their blocks. Pure.

Each hash names a block of 512 tokens and all blocks before it.
"""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from load_tests.harness.errors import RunError
from worker.engines.simulated.engine import BLOCK_TOKENS, PrefixCache

_ID_BYTES = 3
"""Of a hash id; as base64 four characters, which are one token of the simulated engine."""


class Call(NamedTuple):
    """One request of a trace."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: Sequence[int]


def read_trace(path: Path, most: int = 0) -> list[Call]:
    """The calls of a JSONL file, which may end in .gz; `most`: the first so many, 0: all.

    Raises RunError.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            calls = [_call(json.loads(line)) for line in file]
        first_s = calls[0].at_s
    except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"{path}: {error!r}") from error
    return [call._replace(at_s=call.at_s - first_s) for call in calls[: most or None]]


def _call(row: Any) -> Call:
    found = Call(
        at_s=row["timestamp"] / 1e3,
        prompt_tokens=int(row["input_length"]),
        output_tokens=int(row["output_length"]),
        hash_ids=tuple(row["hash_ids"]),
    )
    if len(_block_lengths(found)) != len(found.hash_ids):
        raise ValueError(f"{found.prompt_tokens} tokens with {len(found.hash_ids)} hash_ids")
    return found


def _block_lengths(call: Call) -> list[int]:
    """In tokens; the last block may be short."""
    return [
        min(BLOCK_TOKENS, call.prompt_tokens - at)
        for at in range(0, call.prompt_tokens, BLOCK_TOKENS)
    ]


def prompt(call: Call) -> str:
    """A text whose blocks are equal where their hashes are, and only there."""
    blocks = zip(call.hash_ids, _block_lengths(call), strict=True)
    return "".join(_token(each) * tokens for each, tokens in blocks)


def _token(hash_id: int) -> str:
    return b64encode(hash_id.to_bytes(_ID_BYTES, "big")).decode()


def hit_ratio(calls: Sequence[Call], caches: Sequence[PrefixCache]) -> float:
    """The share of the prompts' tokens that is cached if the calls go to the caches in turn."""
    cached = sum(
        sum(_block_lengths(call)[: cache.use(call.hash_ids)])
        for call, cache in zip(calls, cycle(caches), strict=False)
    )
    return cached / sum(call.prompt_tokens for call in calls)
