"""The simulated engine's responses to chat completion requests."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from worker.engines.simulated.generation import Delta
from worker.engines.simulated.request import BatchChatBody, ChatBody
from worker.engines.simulated.response import GenerationResponse, dump, ranked_tokens
from worker.engines.simulated.sampling import room


class ChatResponse(GenerationResponse):
    """The response to a chat completion request."""

    _id_prefix = "chatcmpl"
    _object = "chat.completion"
    _chunk_object = "chat.completion.chunk"
    _running_usage_details: ClassVar[dict[str, None]] = {"completion_tokens_details": None}

    def __init__(self, body: ChatBody, response_id: str, model: str, max_model_len: int) -> None:
        prompt = body.prompt()
        limit = body.max_tokens
        if body.max_completion_tokens is not None:
            limit = body.max_completion_tokens
        super().__init__(
            body,
            response_id,
            model,
            prompts=[prompt],
            logprobs=body.top_logprobs if body.logprobs else None,
            limits=[room(prompt, limit, max_model_len)],
        )

    def _opening_chunks(self) -> list[dict[str, Any]]:
        (prompt,) = self._prompts
        usage = {**self._usage([prompt], 0), **self._running_usage_details}
        return [
            {
                **self._head,
                "choices": [
                    {
                        "index": index,
                        "delta": {"role": "assistant", "content": ""},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
                **({"usage": usage} if self._running_usage else {}),
                "prompt_token_ids": prompt.token_ids if self._with_ids else None,
                "prompt_text": None,
            }
            for index in range(self._n)
        ]

    def _chunk_choice(self, delta: Delta) -> dict[str, Any]:
        choice = {
            "index": delta.choice,
            "delta": {"content": delta.text},
            "logprobs": self._logprobs_of([delta]),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        choice["token_ids"] = self._ids([delta])
        return choice

    def _choice(self, deltas: list[Delta]) -> dict[str, Any]:
        message = {
            "role": "assistant",
            "content": "".join(delta.text for delta in deltas),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        return {
            "index": deltas[-1].choice,
            "message": message,
            "logprobs": None,
            "finish_reason": deltas[-1].finish_reason,
            "stop_reason": deltas[-1].stop_reason,
            "token_ids": self._ids(deltas),
            "routed_experts": None,
        }

    def _choice_json(self, deltas: list[Delta]) -> str:
        choice = super()._choice_json(deltas)
        if self._logprobs is None:
            return choice
        tokens = (token for delta in deltas for token in delta.token_ids)
        content = ",".join([_token_json(token, self._logprobs) for token in tokens])
        before, name, after = choice.partition('"logprobs":')
        return f'{before}{name}{{"content":[{content}]}}{after.removeprefix("null")}'

    def _trailing_fields(self) -> dict[str, Any]:
        prompt = self._prompts[0]
        return {
            "prompt_logprobs": None,
            "prompt_token_ids": prompt.token_ids if self._with_ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _logprobs_of(self, deltas: list[Delta]) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        tokens = (token for delta in deltas for token in delta.token_ids)
        return {"content": [_token_logprobs(token, self._logprobs) for token in tokens]}


class BatchChatResponse(ChatResponse):
    """The response to a request with several conversations: one choice for each."""

    def __init__(
        self, body: BatchChatBody, response_id: str, model: str, max_model_len: int
    ) -> None:
        prompts = body.prompts()
        limit = body.max_tokens
        if body.max_completion_tokens is not None:
            limit = body.max_completion_tokens
        GenerationResponse.__init__(
            self,
            body.model_copy(update={"stream": False, "stream_options": None}),
            response_id,
            model,
            prompts=prompts,
            logprobs=None,
            limits=[room(prompt, limit, max_model_len) for prompt in prompts],
        )


def _token_logprobs(token: int, n: int) -> dict[str, Any]:
    ranked = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode())}
        for text, logprob in ranked_tokens(token, max(1, n))
    ]
    return {**ranked[0], "top_logprobs": ranked[:n]}


@lru_cache(2048)
def _token_json(token: int, n: int) -> str:
    """Made once for each token: an answer has many, and is made on the event loop."""
    return dump(_token_logprobs(token, n))
