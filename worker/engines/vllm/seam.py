"""Where the past of one choice ends and what the engine adds to it begins.

The engine's outputs for a continued choice begin with tokens of its past: all of them (forced
replay), or the last one with the text of all (prefill resume). `Seam` drops those and passes on
what follows. An output may lie across the seam, because vLLM merges outputs that wait for a reader:
it is cut by tokens and by text.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from vllm.outputs import CompletionOutput, RequestOutput

from worker.engines.interface import Generated, PastRefused
from worker.engines.vllm import logprobs as vllm_logprobs


class Replayed(RequestOutput):  # type: ignore[misc]
    """An output that was made of a journaled delta."""


class Seam:
    """The past of the choice `index`, of whose tokens the engine repeats the last `repeated`."""

    def __init__(
        self,
        index: int,
        deltas: Sequence[Generated],
        *,
        repeated: int,
        prompt_logprobs: Any = None,
        flat_logprobs: bool = False,
    ) -> None:
        tokens = [token for delta in deltas for token in delta.token_ids]
        self.passed = not tokens
        """Whether all that follows is new."""
        self._index = index
        self._deltas = deltas
        self._text = "".join(delta.text for delta in deltas)
        self._prompt_logprobs = prompt_logprobs
        self._flat = flat_logprobs
        self._awaited = tokens[-repeated:]
        self._seen_text = ""
        self._logprob = 0.0

    def past(self, like: RequestOutput) -> list[RequestOutput]:
        """Outputs of all deltas but the last, which may be the one with the finish reason."""
        deltas = self._deltas if self.passed else self._deltas[:-1]
        outputs = [self._replayed(like, delta) for delta in deltas]
        if self._deltas and self._prompt_logprobs is not None:
            # vLLM gives them with the first output, and an empty list with the others.
            for output in outputs:
                output.prompt_logprobs = []
            if outputs:
                outputs[0].prompt_logprobs = self._prompt_logprobs
        return outputs

    def feed(self, output: RequestOutput) -> list[RequestOutput]:
        """What becomes of an output of the engine: `Replayed` ones, and new ones."""
        (part,) = output.outputs
        part.index = self._index
        if self.passed:
            return [output]
        repeated = min(len(self._awaited), len(part.token_ids))
        same = list(part.token_ids[:repeated]) == self._awaited[:repeated]
        del self._awaited[:repeated]
        self._seen_text += part.text
        if self._awaited:
            same &= part.finish_reason is None and self._text.startswith(self._seen_text)
        else:
            self.passed = same = same and self._seen_text.startswith(self._text)
        if not same:
            raise PastRefused("the engine did not repeat what the answer has so far.")
        if self._awaited:
            return []
        return self._cut(output, part, repeated)

    def _cut(self, output: RequestOutput, part: CompletionOutput, repeated: int) -> list[Any]:
        last = self._replayed(output, self._deltas[-1])
        if len(self._deltas) == 1:
            last.prompt_logprobs = self._prompt_logprobs
        elif self._prompt_logprobs is not None:
            last.prompt_logprobs = []
        text = self._seen_text[len(self._text) :]
        part.token_ids = part.token_ids[repeated:]
        if not part.token_ids:
            # The answer ended with the past: then the finish belongs to the last delta's chunk.
            (own,) = last.outputs
            own.finish_reason, own.stop_reason = part.finish_reason, part.stop_reason
            own.text += text
            last.finished = output.finished
            return [last]
        part.text = text
        if part.logprobs is not None:
            part.logprobs = part.logprobs[repeated:]
        if self._prompt_logprobs is not None:
            output.prompt_logprobs = []
        return [last, output]

    def _replayed(self, like: RequestOutput, delta: Generated) -> RequestOutput:
        output = copy.copy(like)
        output.__class__ = Replayed
        logprobs = None
        if delta.logprobs is not None:
            self._logprob += vllm_logprobs.total(delta.logprobs)
            logprobs = vllm_logprobs.from_journal(delta.logprobs, flat=self._flat)
        output.outputs = [
            CompletionOutput(
                index=self._index,
                text=delta.text,
                token_ids=list(delta.token_ids),
                cumulative_logprob=None if logprobs is None else self._logprob,
                logprobs=logprobs,
            )
        ]
        output.finished = False
        return output
