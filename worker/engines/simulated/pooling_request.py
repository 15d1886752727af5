"""Requests for embeddings, classes, scores and tokens: their fields, in vLLM's words."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from worker.engines.simulated.generation import Prompt
from worker.engines.simulated.refusal import RefusedError, bad_value, missing
from worker.engines.simulated.request import Message, conversation_prompt

_Conversation = list[Message]


class PoolingBody(BaseModel):
    """The fields that all have."""

    model: str | None = None
    request_id: str = ""
    truncate_prompt_tokens: int | None = Field(None, ge=-1)


class InputBody(PoolingBody):
    """A request for embeddings, classes, or a pooled output."""

    input: (
        list[int] | list[list[int]] | str | list[str] | _Conversation | list[_Conversation] | None
    ) = None
    messages: _Conversation | list[_Conversation] | None = None
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    dimensions: int | None = None

    def prompts(self) -> list[Prompt]:
        """At least one. Raises RefusedError."""
        given = self.messages if self.input is None else self.input
        if given is None:
            raise missing("input")
        if self.dimensions is not None:
            raise RefusedError(
                'Model "simulated" does not support matryoshka representation, '
                "changing output dimensions will lead to poor results."
            )
        if not given:
            raise RefusedError("You must pass at least one prompt")
        return [prompt_of(each) for each in given] if _is_many(given) else [prompt_of(given)]


class CohereEmbedBody(PoolingBody):
    """Cohere's request for embeddings. Images are not simulated."""

    texts: list[str] | None = None
    embedding_types: list[Literal["float", "binary", "ubinary", "base64"]] | None = None

    def prompts(self) -> list[Prompt]:
        """At least one. Raises RefusedError."""
        if not self.texts:
            raise RefusedError(
                "Exactly one of texts, images, or inputs must be provided, and it must be non-empty"
            )
        return [Prompt(text) for text in self.texts]


_Scored = str | dict[str, Any]
_ScoredList = _Scored | list[_Scored]


class ScoreBody(PoolingBody):
    """Two texts or lists of texts, under one of four pairs of names."""

    queries: _ScoredList | None = None
    documents: _ScoredList | None = None
    items: _ScoredList | None = None
    text_1: _ScoredList | None = None
    text_2: _ScoredList | None = None
    data_1: _ScoredList | None = None
    data_2: _ScoredList | None = None

    def pairs(self) -> list[tuple[str, str]]:
        """At least one. Raises RefusedError."""
        names = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
        for first, second in (*names, ("text_1", "text_2")):
            left, right = getattr(self, first), getattr(self, second)
            if left is not None and right is not None:
                return pairs(left, right)
        raise missing("queries")


class RerankBody(PoolingBody):
    """A query and documents to order."""

    query: _Scored
    documents: _ScoredList
    top_n: int = Field(0, ge=0)


class TokenizeBody(BaseModel):
    """A text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: _Conversation | None = None
    return_token_strs: bool | None = False

    def given(self) -> Prompt:
        """The text. Raises RefusedError."""
        if self.prompt is not None:
            return Prompt(self.prompt)
        if self.messages is None:
            raise missing("prompt")
        return prompt_of(self.messages)


class DetokenizeBody(BaseModel):
    """Token ids."""

    model: str | None = None
    tokens: list[int]


class ItemsBody(BaseModel):
    """A query and items, for the probability of tokens behind them."""

    model: str | None = None
    request_id: str = ""
    query: str | list[int]
    items: list[str] | list[list[int]]
    label_token_ids: list[int]
    item_first: bool = False

    def prompts(self) -> list[Prompt]:
        """One for each item. Raises RefusedError."""
        if not self.label_token_ids:
            raise RefusedError("label_token_ids must contain at least one token ID.")
        if not self.items:
            raise RefusedError("items must contain at least one item.")
        query = prompt_of(self.query).text
        texts = [prompt_of(item).text for item in self.items]
        return [Prompt(text + query if self.item_first else query + text) for text in texts]


class DecisionBody(BaseModel):
    """Questions about a text."""

    model: str | None = None
    request_id: str = ""
    state: Any
    questions: dict[str, dict[str, Any]]

    def prompts(self) -> list[Prompt]:
        """One for each question. Raises RefusedError."""
        if not self.questions:
            raise RefusedError("questions: needs at least one question")
        return [Prompt(f"{self.state} {question}") for question in self.questions.values()]


def prompt_of(given: Any) -> Prompt:
    """A text, token ids, or a conversation as a prompt."""
    if isinstance(given, str):
        return Prompt(given)
    if given and isinstance(given[0], Message):
        return conversation_prompt(given)
    return Prompt(" ".join(map(str, given)), tuple(given))


def text_of(scored: _Scored) -> str:
    """A text, or the texts of a content's parts."""
    if isinstance(scored, str):
        return scored
    return " ".join(str(part.get("text", "")) for part in scored.get("content", ()))


def pairs(first: _ScoredList, second: _ScoredList) -> list[tuple[str, str]]:
    """Each text with its partner; a single first one with all. Raises RefusedError."""
    left = [text_of(each) for each in (first if isinstance(first, list) else [first])]
    right = [text_of(each) for each in (second if isinstance(second, list) else [second])]
    if not left or not right:
        empty = "data_1" if not left else "data_2"
        raise bad_value("At least one text element must be given", empty)
    if len(left) not in (1, len(right)):
        raise RefusedError("Input lengths must be either 1:1, 1:N or N:N")
    return list(zip(left * len(right) if len(left) == 1 else left, right, strict=True))


def _is_many(given: Any) -> bool:
    return isinstance(given, list) and not isinstance(given[0], int | Message)
