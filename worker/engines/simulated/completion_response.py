"""The simulated engine's responses to completion requests."""

from __future__ import annotations

from typing import Any, ClassVar

from worker.engines.simulated.generation import Delta
from worker.engines.simulated.request import CompletionBody
from worker.engines.simulated.response import GenerationResponse, ranked_tokens
from worker.engines.simulated.sampling import room


class CompletionResponse(GenerationResponse):
    """The response to a completion request, of one prompt or several."""

    _id_prefix = "cmpl"
    _object = _chunk_object = "text_completion"
    _running_usage_details: ClassVar[dict[str, None]] = {}

    def __init__(
        self, body: CompletionBody, response_id: str, model: str, max_model_len: int
    ) -> None:
        prompts = body.prompts()
        max_tokens = 16 if body.max_tokens is None else body.max_tokens
        super().__init__(
            body,
            response_id,
            model,
            prompts=prompts,
            logprobs=body.logprobs,
            limits=[room(prompt, max_tokens, max_model_len) for prompt in prompts],
        )
        self._offsets = [0] * len(self._n_tokens)
        """Characters of the tokens so far, by choice."""

    def _opening_chunks(self) -> list[dict[str, Any]]:
        return []

    def _chunk_choice(self, delta: Delta) -> dict[str, Any]:
        first = self._n_tokens[delta.choice] == 1
        return {
            "index": delta.choice,
            "text": delta.text,
            "logprobs": self._logprobs_of([delta]),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "prompt_token_ids": self._prompt_ids(delta.choice) if first else None,
            "token_ids": self._ids([delta]),
        }

    def _choice(self, deltas: list[Delta]) -> dict[str, Any]:
        return {
            "index": deltas[-1].choice,
            "text": "".join(delta.text for delta in deltas),
            "logprobs": self._logprobs_of(deltas),
            "finish_reason": deltas[-1].finish_reason,
            "stop_reason": deltas[-1].stop_reason,
            "token_ids": self._ids(deltas),
            "prompt_logprobs": None,
            "prompt_token_ids": self._prompt_ids(deltas[-1].choice),
            "routed_experts": None,
        }

    def _trailing_fields(self) -> dict[str, Any]:
        return {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}

    def _prompt_ids(self, choice: int) -> list[int] | None:
        return self._prompts[choice // self._n].token_ids if self._with_ids else None

    def _logprobs_of(self, deltas: list[Delta]) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        offsets, logprobs, texts, tops = [], [], [], []
        for delta in deltas:
            for token in delta.token_ids:
                ranked = ranked_tokens(token, max(1, self._logprobs))
                offsets.append(self._offsets[delta.choice])
                texts.append(ranked[0][0])
                logprobs.append(ranked[0][1])
                tops.append(dict(ranked))
                self._offsets[delta.choice] += len(ranked[0][0])
        return {
            "text_offset": offsets,
            "token_logprobs": logprobs,
            "tokens": texts,
            "top_logprobs": tops,
        }
