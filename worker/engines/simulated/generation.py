"""The simulated engine's sequences: which tokens a request gets, and the queue of its deltas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from zlib import crc32

from worker.engines.protocol import Journal

_WORDS = (
    "the a one each some every queue stream worker gateway job token batch answer lease slot step "
    "model shard lane prompt delta engine fleet harbour ship sail wind wave tide rope deck mast "
    "carries holds waits moves reads writes takes gives keeps turns slow quick small large quiet "
    "early late open full near far under over with from into after before until and or but so"
)
EOS = 0
_LABEL = 1
_FIRST_WORD = 2
TOKENS = ("", "[simulated]", *(f" {word}" for word in _WORDS.split()))
"""The text of every token by id. An answer starts with the label, so that nobody mistakes it for a
model's. One that ends by itself ends with `EOS`, whose text is empty and which counts as a token,
as vLLM's does."""
_N_WORDS = len(TOKENS) - _FIRST_WORD
_PROMPT_VOCABULARY = 50_000
_SHORTEST_ANSWER, _LONGEST_ANSWER = 8, 64


class EngineDeadError(Exception):
    """The engine is dead."""


class Disconnected(Exception):
    """The client has disconnected."""


@dataclass(frozen=True)
class Prompt:
    """A prompt's text; four bytes are one token."""

    text: str
    given_ids: tuple[int, ...] | None = None
    """Set when the client sent token ids; `text` then lists them."""

    @cached_property
    def n_tokens(self) -> int:
        """Length in tokens, at least 1."""
        return len(self.given_ids or ()) or max(1, len(self._encoded) // 4)

    @cached_property
    def digest(self) -> int:
        """CRC-32 of the text, the seed of its answers."""
        return crc32(self._encoded)

    @property
    def token_ids(self) -> list[int]:
        """The given token ids, else invented ones, always the same for the same text."""
        if self.given_ids:
            return list(self.given_ids)
        data = self._encoded
        return [crc32(data[4 * i : 4 * i + 4]) % _PROMPT_VOCABULARY for i in range(self.n_tokens)]

    @cached_property
    def _encoded(self) -> bytes:
        return self.text.encode(errors="replace")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to answer each prompt of a request."""

    n: int
    seed: int | None
    stop: tuple[str, ...]
    include_stop: bool
    ignore_eos: bool
    min_tokens: int


class Delta(NamedTuple):
    """One step's token of one choice."""

    choice: int
    token_ids: tuple[int, ...]
    text: str
    """May be empty, and may lag behind the tokens where a stop string could still begin."""
    finish_reason: str | None = None
    stop_reason: str | None = None


class Generation:
    """All sequences of one HTTP request, and the queue of their deltas."""

    def __init__(self, *, stream: bool, journal: Journal | None) -> None:
        self.sequences: list[Sequence] = []
        self.journal = journal
        self.interceptor: Callable[[Delta], bool] | None = None
        """Called with each delta while the queue is empty. True: it has handled the delta, which is
        not queued then and does not wake the reader."""
        self._stream = stream
        self._unfinished = 0
        self._deltas: list[Delta] = []
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def add(self, call: int, prompt: Prompt, sampling: Sampling, max_tokens: int) -> None:
        """Add the sequences of one prompt, which is number `call` of the request."""
        if self.journal is not None:
            self.journal.prompt(call, prompt.n_tokens)
        for index in range(sampling.n):
            self.sequences.append(Sequence(self, call, index, prompt, sampling, max_tokens))
        self._unfinished += sampling.n

    def put(self, delta: Delta) -> None:
        """Queue a delta, unless the interceptor handles it."""
        if self.interceptor is not None and not self._deltas and self.interceptor(delta):
            return
        self._deltas.append(delta)
        if delta.finish_reason is not None:
            self._unfinished -= 1
        if self._stream or not self._unfinished:
            self._wake()

    def fail(self, error: Exception) -> None:
        """End the generation with an error; no deltas may follow."""
        self._error = error
        self._wake()

    async def next_deltas(self) -> list[Delta]:
        """The deltas since the last call, as soon as there are any; none when all have ended.

        Without `stream` all deltas at once, at the end. Raises what `fail` was given, on a stream
        after the deltas that came before it.
        """
        while self._error is None and self._unfinished and not (self._stream and self._deltas):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        deltas, self._deltas = self._deltas, []
        if self._error is not None and not (self._stream and deltas):
            raise self._error
        return deltas

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Sequence:
    """One answer being generated, determined by prompt, seed and index."""

    __slots__ = (
        "_call",
        "_choice",
        "_generation",
        "_index",
        "_n_sent",
        "_sampling",
        "_state",
        "_stop_reason",
        "_text",
        "_to_eos",
        "_to_limit",
        "finish_reason",
        "n_generated",
        "n_tokens",
        "prompt",
    )

    def __init__(
        self,
        generation: Generation,
        call: int,
        index: int,
        prompt: Prompt,
        sampling: Sampling,
        max_tokens: int,
    ) -> None:
        digest = crc32(f"/{sampling.seed}/{index}".encode(), prompt.digest)
        length = _SHORTEST_ANSWER + digest % (_LONGEST_ANSWER - _SHORTEST_ANSWER + 1)
        self._generation = generation
        self._call = call
        self._index = index
        self._choice = call * sampling.n + index
        self._sampling = sampling
        self._state = digest
        self._to_eos = 0 if sampling.ignore_eos else max(length, sampling.min_tokens + 1)
        self._to_limit = max_tokens
        self._text = ""
        self._n_sent = 0
        self._stop_reason: str | None = None
        self.prompt = prompt
        self.n_tokens = prompt.n_tokens
        """Prompt and answer: what the sequence holds of the KV cache while it runs."""
        self.n_generated = 0
        self.finish_reason: str | None = None

    @property
    def generation(self) -> Generation:
        """The request that it belongs to."""
        return self._generation

    def advance(self) -> None:
        """Draw the next token, journal it and queue it for the reader."""
        self.n_generated += 1
        self.n_tokens += 1
        if self.n_generated == self._to_eos:
            token = EOS
            self.finish_reason = "stop"
        else:
            token = self._draw()
            if self.n_generated == self._to_limit:
                self.finish_reason = "length"
        text = TOKENS[token]
        if self._sampling.stop:
            text = self._cut(text)
        generation = self._generation
        if generation.journal is not None:
            generation.journal.delta(self._call, self._index, (token,), text)
        generation.put(Delta(self._choice, (token,), text, self.finish_reason, self._stop_reason))

    def _draw(self) -> int:
        if self.n_generated == 1:
            return _LABEL
        # A linear congruential generator (the C standard's example): 0.1 us a token.
        self._state = (self._state * 1103515245 + 12345) & 0x7FFFFFFF
        return _FIRST_WORD + (self._state >> 16) % _N_WORDS

    def _cut(self, new: str) -> str:
        """The text that may be sent now: as in vLLM, never the beginning of a stop string."""
        stops = self._sampling.stop
        seen = len(self._text)
        self._text += new
        found = [
            (at + len(stop), at, stop)
            for stop in stops
            if new and (at := self._text.find(stop, max(0, seen - len(stop) + 1))) >= 0
        ]
        if found:
            end, at, self._stop_reason = min(found, key=lambda match: match[0])
            self.finish_reason = "stop"
            shown = end if self._sampling.include_stop else at
        elif self.finish_reason is not None or self._sampling.include_stop:
            shown = len(self._text)
        else:
            shown = max(self._n_sent, len(self._text) - max(map(len, stops)) + 1)
        text = self._text[self._n_sent : shown]
        self._n_sent = shown
        return text
