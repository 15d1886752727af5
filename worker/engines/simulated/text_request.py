"""Requests for text: one model with the fields of every endpoint that generates.

Unknown fields are ignored, as in vLLM. A request that this engine can't use is one error, whatever
is wrong with it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError
from starlette.responses import JSONResponse

from worker.engines.simulated.generation import Prompt, Sampling

_NOT_SIMULATED = {"echo", "prompt_logprobs", "response_format", "structured_outputs", "suffix"}
_AtLeast1 = Annotated[int, Field(ge=1)]
_StopText = Annotated[str, Field(min_length=1)]
_Conversation = list[dict[str, Any]]


class RefusedError(Exception):
    """The engine refuses a request; `response` is the error, in the shape of vLLM's."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        error = {"message": message, "type": kind, "param": None, "code": status}
        self.response = JSONResponse({"error": error}, status)


class TextRequest(BaseModel):
    """A request to any endpoint that generates text."""

    model: str | None = None
    messages: _Conversation | list[_Conversation] | None = None
    prompt: str | list[int] | list[str] | list[list[int]] | None = None
    input: str | _Conversation | None = None
    system: str | _Conversation | None = None
    instructions: str | None = None
    max_tokens: _AtLeast1 | None = None
    max_completion_tokens: _AtLeast1 | None = None
    max_output_tokens: _AtLeast1 | None = None
    min_tokens: int = 0
    n: Annotated[int, Field(ge=1, le=1 << 14)] | None = None
    seed: int | None = None
    stop: _StopText | list[_StopText] | None = None
    stop_sequences: list[_StopText] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: bool | Annotated[int, Field(ge=0, le=20)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool | None = False
    stream_options: dict[str, bool | None] | None = None
    return_token_ids: bool | None = None
    request_id: str = ""
    metadata: dict[str, Any] | None = None

    @property
    def n_alternatives(self) -> int | None:
        """How many alternatives each token gets; None: the answer has no logprobs."""
        if self.logprobs is True:
            return self.top_logprobs or 0
        return None if self.logprobs is False else self.logprobs

    def with_usage(self, option: str = "include_usage") -> bool:
        """Whether this one of `stream_options` is set."""
        return bool(self.stream_options and self.stream_options.get(option))

    def prompts(self) -> list[Prompt]:
        """At least one. Raises RefusedError."""
        given = self.messages or self.prompt or self.input
        if not given:
            raise RefusedError("The simulated engine can't use this request: it has no prompt.")
        several = isinstance(given, list) and not isinstance(given[0], dict | int)
        system = self.system or self.instructions
        before = f"system: {_content_text(system)}\n" if system else ""
        return [Prompt(before + _text(each)) for each in (given if several else [given])]

    def sampling(self) -> Sampling:
        """How to answer each prompt."""
        stop = self.stop_sequences or self.stop or ()
        return Sampling(
            n=self.n or 1,
            seed=self.seed,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            include_stop=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
        )

    def limit(self, prompt: Prompt, max_model_len: int, default: int | None = None) -> int:
        """How many tokens the answer may have. Raises RefusedError."""
        left = max_model_len - prompt.n_tokens
        asked = self.max_completion_tokens or self.max_output_tokens or self.max_tokens or default
        if left < 1 or (asked or 0) > max_model_len:
            raise RefusedError(
                f"The simulated engine can't use this request: the prompt has {prompt.n_tokens} "
                f"tokens and max_tokens is {asked}; both together have room for {max_model_len}."
            )
        return min(left, asked or left)


def parse(fields: dict[str, Any]) -> TextRequest:
    """The request with these fields. Raises RefusedError."""
    wrong = sorted(name for name in _NOT_SIMULATED & fields.keys() if fields[name])
    if not wrong:
        try:
            return TextRequest.model_validate(fields)
        except ValidationError as error:
            wrong = sorted({str(each["loc"][0]) for each in error.errors(include_input=False)})
    raise RefusedError(f"The simulated engine can't use this request: {', '.join(wrong)}.")


def _text(given: Any) -> str:
    """A text, token ids, or a conversation as one text."""
    return given if isinstance(given, str) else "\n".join(map(_line, given))


def _line(item: int | dict[str, Any]) -> str:
    if isinstance(item, int):
        return str(item)
    content = item.get("content") or item.get("output") or item.get("arguments") or ""
    return f"{item.get('role', 'user')}: {_content_text(content)}"


def _content_text(content: Any) -> str:
    if not isinstance(content, list):
        return str(content)
    return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
