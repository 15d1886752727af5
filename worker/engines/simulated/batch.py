"""The simulated engine's continuous batch: which sequences run in a step.

No clock and no I/O: engine.py decides when a step is taken.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence as ReadOnlySequence

from worker.engines.simulated.generation import Generation, Sequence
from worker.engines.simulated.prefix_cache import BLOCK_TOKENS, PrefixCache


class Batch:
    """First come, first served; bounded by sequences and by KV tokens, as vLLM's scheduler is.

    `prefill_tokens`: most prompt tokens of one step; 0: all.
    """

    def __init__(
        self,
        max_num_seqs: int,
        kv_tokens: int,
        prefill_tokens: int = 0,
        cache: PrefixCache | None = None,
    ) -> None:
        self.running: list[Sequence] = []
        self.kv_used = 0
        """Tokens of the running sequences."""
        self._waiting: deque[Sequence] = deque()
        self._max_num_seqs = max_num_seqs
        self._kv_tokens = kv_tokens
        self._prefill_tokens = prefill_tokens or sys.maxsize
        self._cache = cache

    def __len__(self) -> int:
        """Sequences that run or wait."""
        return len(self.running) + len(self._waiting)

    def add(self, sequences: ReadOnlySequence[Sequence]) -> None:
        """Put sequences at the end of the waiting ones."""
        self._waiting.extend(sequences)

    def discard(self, generation: Generation) -> None:
        """Remove the sequences of `generation` that have not ended."""
        left = [s for s in self.running if s.generation is generation]
        self._leave(left)
        if any(s.generation is generation for s in self._waiting):
            self._waiting = deque(s for s in self._waiting if s.generation is not generation)

    def clear(self) -> set[Generation]:
        """Empty the batch; returns the generations that had not ended."""
        cut_off = {sequence.generation for sequence in (*self.running, *self._waiting)}
        self.running, self.kv_used = [], 0
        self._waiting.clear()
        return cut_off

    def admit(self) -> int:
        """Choose the next step's sequences; returns the number of prompt tokens to prefill."""
        while self.kv_used + len(self.running) > self._kv_tokens:
            preempted = self.running.pop()
            self.kv_used -= preempted.n_tokens
            self._waiting.appendleft(preempted)
        while self._waiting and len(self.running) < self._max_num_seqs:
            # Room for the tokens of all sequences and for the one that each gets in this step.
            needed = self.kv_used + len(self.running) + self._waiting[0].n_tokens + 1
            if needed > self._kv_tokens:
                break
            sequence = self._waiting.popleft()
            self.running.append(sequence)
            self.kv_used += sequence.n_tokens
            sequence.to_prefill = self._uncached(sequence)
        return self._prefill()

    def step(self) -> None:
        """Generate one token for every prefilled sequence; those that ended leave the batch."""
        ready = [sequence for sequence in self.running if not sequence.to_prefill]
        for sequence in ready:
            sequence.advance()
        self.kv_used += len(ready)
        self._leave([s for s in ready if s.finish_reason is not None])

    def _uncached(self, sequence: Sequence) -> int:
        """How many tokens of an admitted sequence must be prefilled."""
        if self._cache is None:
            return sequence.n_tokens
        held = self._cache.use(sequence.blocks)
        n_prompt, of_answer = sequence.prompt.n_tokens, max(0, held - len(sequence.prompt.blocks))
        cached = min(n_prompt, BLOCK_TOKENS * held)
        if sequence.cached_tokens is None:
            sequence.note_cached(cached)
        return max(1, sequence.n_tokens - cached - BLOCK_TOKENS * of_answer)

    def _prefill(self) -> int:
        """Prefill what one step can, in order of admission; returns the number of tokens."""
        left = self._prefill_tokens
        for sequence in self.running:
            tokens = min(left, sequence.to_prefill)
            sequence.to_prefill -= tokens
            left -= tokens
        return self._prefill_tokens - left

    def _leave(self, leaving: ReadOnlySequence[Sequence]) -> None:
        if leaving:
            gone = set(leaving)
            self.running = [sequence for sequence in self.running if sequence not in gone]
            self.kv_used -= sum(sequence.n_tokens for sequence in leaving)
            if self._cache is not None:
                for sequence in leaving:
                    self._cache.use(sequence.blocks)
