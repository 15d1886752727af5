"""vLLM 0.32's pydantic class of a chat completion's request: the same fields and validators.

Fields that the load client never sends have simpler types: they cost their default only.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from load_tests.systems.vllm_server.messages import Message
from load_tests.systems.vllm_server.models import OpenAIBaseModel
from worker.engines.simulated.generation import Generation, Prompt, Sampling

_INT64 = 2**63
_LONGEST_SALT = 128
_SALT_FORBIDS = frozenset("@/\\\x00")
_MAX_STOP_STRINGS = 1024
_DEFAULT_TOKENS = 16

_Stop = str | Annotated[list[str], Field(max_length=_MAX_STOP_STRINGS)] | None
_TopLogprobs = Annotated[int, BeforeValidator(lambda value: 0 if value is None else value)]


def random_id() -> str:
    """Return 16 hexadecimal digits, as vLLM does."""
    return f"{uuid.uuid4().int & (1 << 64) - 1:016x}"


class ChatRequest(OpenAIBaseModel):
    """A chat completion request; the fields are in vLLM's order."""

    messages: list[Message]
    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = False
    top_logprobs: _TopLogprobs = 0
    max_tokens: int | None = Field(default=None, deprecated="use max_completion_tokens")
    max_completion_tokens: int | None = None
    n: int | None = 1
    presence_penalty: float | None = None
    response_format: dict[str, Any] | None = None
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    stop: _Stop = Field(default=[])
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = "none"
    reasoning_effort: str | None = None
    thinking_token_budget: int | None = None
    include_reasoning: bool = True
    parallel_tool_calls: bool | None = True
    user: str | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    watermarking: bool | None = None
    length_penalty: float = 1.0
    stop_token_ids: list[int] | None = Field(default=[])
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = Field(default_factory=list)
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    priority: int = Field(default=0, ge=-_INT64, lt=_INT64)
    request_id: str = Field(default_factory=random_id)
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    routed_experts_prompt_start: int = Field(default=0, ge=0)
    return_token_offsets: bool | None = False
    return_prompt_text: bool | None = None
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = Field(default=None, deprecated="use mm_payload")
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, Any] | None = None
    repetition_detection: dict[str, int] | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None
    _grammar_from_parser: bool = PrivateAttr(default=False)
    _default_sampling_params: dict[str, float] = PrivateAttr(
        default={
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
        }
    )
    """Unused here, but pydantic copies it for each request, as in vLLM."""

    @model_validator(mode="before")
    @classmethod
    def _media(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("return_mm_kwargs") is False:
            data = {"mm_payload": "none", **data}
        return data

    @model_validator(mode="before")
    @classmethod
    def _salt(cls, data: Any) -> Any:
        if not isinstance(data, dict) or (salt := data.get("cache_salt")) is None:
            return data
        if len(salt) > _LONGEST_SALT or any(char in _SALT_FORBIDS for char in salt):
            raise ValueError("invalid cache_salt")
        return data

    @model_validator(mode="before")
    @classmethod
    def _normal_messages(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("messages"), list):
            return data
        for message in data["messages"]:
            if not isinstance(message, dict):
                continue
            calls = message.get("tool_calls")
            if calls is not None and not isinstance(calls, list):
                message["tool_calls"] = list(calls)
            reasoning = message.pop("reasoning_content", None)
            if reasoning is not None and message.get("reasoning") is None:
                message["reasoning"] = reasoning
        return data

    @model_validator(mode="after")
    def _whole_tool_calls(self) -> ChatRequest:
        """Replace the one-shot iterators that pydantic makes of tool calls."""
        for message in self.messages:
            if not isinstance(message, dict):
                continue
            calls: Any = message.get("tool_calls")
            if calls is not None and not isinstance(calls, list):
                message["tool_calls"] = list(calls)  # type: ignore[typeddict-unknown-key]
        return self

    @model_validator(mode="before")
    @classmethod
    def _response_format(cls, data: Any) -> Any:
        if not isinstance(data, dict) or (wanted := data.get("response_format")) is None:
            return data
        if wanted.get("type") == "json_schema" and wanted.get("json_schema") is None:
            raise ValueError("json_schema must be given")
        return data

    @model_validator(mode="before")
    @classmethod
    def _stream_options(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("stream_options") and not data.get("stream"):
            raise ValueError("stream_options need stream")
        return data

    @model_validator(mode="before")
    @classmethod
    def _logprobs(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("logprob_token_ids") and data.get("use_beam_search"):
            raise ValueError("no logprob_token_ids with beam search")
        if data.get("logprob_token_ids") and not data.get("logprobs"):
            raise ValueError("logprob_token_ids need logprobs")
        for name in ("prompt_logprobs", "top_logprobs"):
            value = data.get(name)
            if value is not None and not isinstance(value, int | float):
                raise ValueError(f"{name} must be an integer")
        if (of_prompt := data.get("prompt_logprobs")) is not None and of_prompt < -1:
            raise ValueError("prompt_logprobs must be positive or -1")
        if (top := data.get("top_logprobs")) is not None and top and not data.get("logprobs"):
            raise ValueError("top_logprobs need logprobs")
        return data

    @model_validator(mode="before")
    @classmethod
    def _structured_outputs(cls, data: Any) -> Any:
        if not isinstance(data, dict) or (wanted := data.get("structured_outputs")) is None:
            return data
        if sum(wanted.get(kind) is not None for kind in ("json", "regex", "choice")) > 1:
            raise ValueError("one kind of structured output at a time")
        return data

    @model_validator(mode="before")
    @classmethod
    def _tools(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("tools") == []:
            raise ValueError("tools must not be empty")
        if "tool_choice" not in data and data.get("tools"):
            data["tool_choice"] = "auto"
        if "tool_choice" in data and data["tool_choice"] not in (None, "none"):
            raise ValueError("the simulated engine has no tools")
        return data

    @model_validator(mode="before")
    @classmethod
    def _generation_prompt(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("continue_final_message") and data.get("add_generation_prompt"):
            raise ValueError("continue_final_message or add_generation_prompt, not both")
        return data

    @model_validator(mode="before")
    @classmethod
    def _prompt_token_ids(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        params = data.get("kv_transfer_params")
        if isinstance(params, dict):
            params.pop("prompt_token_ids", None)
        return data

    @model_validator(mode="before")
    @classmethod
    def _system_content(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for message in data.get("messages", []):
            if isinstance(message, dict) and message.get("role") == "system":
                message.get("content")
        return data

    @property
    def limit(self) -> int:
        """The maximum number of tokens of the answer."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens or _DEFAULT_TOKENS

    def generation(self) -> tuple[Generation, Prompt]:
        """Return the generation for the simulated engine, and its prompt."""
        messages: list[Any] = self.messages
        prompt = Prompt("\n".join(f"{m['role']}: {m.get('content') or ''}" for m in messages))
        how = Sampling(
            n=1,
            seed=self.seed,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            include_stop=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
        )
        generation = Generation(stream=bool(self.stream), journal=None)
        generation.add(0, prompt, how, self.limit)
        return generation, prompt
