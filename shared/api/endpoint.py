"""What a row of the endpoint table consists of; `endpoints.py` has the rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Task(StrEnum):
    """What a model has to be able to do, in vLLM's words."""

    GENERATE = "generate"
    EMBED = "embed"
    CLASSIFY = "classify"
    POOLING = "pooling"
    """Any pooling task of the model's."""
    SCORE = "score"
    """A cross-encoder, a bi-encoder, or late interaction."""
    TOKENIZE = "tokenize"
    """Every model's."""
    TRANSCRIPTION = "transcription"
    ANY = "any"
    """The body's fields decide which task it is."""


class BodyKind(StrEnum):
    """How a request's body is encoded."""

    JSON = "json"
    MULTIPART = "multipart"
    """A form with files. The job keeps its content type, which has the boundary."""


class ModelField(StrEnum):
    """Whether a request has to name its model, in the field `model`; as in vLLM."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    """Without it: the fleet's default model (`FleetView.model`)."""


class ErrorStyle(StrEnum):
    """Whose shape the errors of an endpoint have."""

    OPENAI = "openai"
    RESPONSE = "response"
    """OpenAI's too; inside a stream an error is an event of the response."""
    ANTHROPIC = "anthropic"


class StreamFormat(StrEnum):
    """What a streamed answer (server-sent events) consists of: the `object` of its chunks, or
    events with a `type`."""

    CHAT_CHUNKS = "chat.completion.chunk"
    COMPLETION_CHUNKS = "text_completion"
    RESPONSE_EVENTS = "response"
    """OpenAI's responses: events, the last is `response.completed` or the like."""
    MESSAGE_EVENTS = "message"
    """Anthropic's messages: events, the last is `message_stop`."""
    TRANSCRIPTION_CHUNKS = "transcription.chunk"


class InputKind(StrEnum):
    """Which fields hold the model's input; each kind has limits of its own (prompt_limits.py)."""

    MESSAGES = "messages"
    """A conversation: a list of messages."""
    BLOCKS = "blocks"
    """A conversation whose contents are blocks (Anthropic's)."""
    CONVERSATIONS = "conversations"
    """Several: `messages` is a list of conversations."""
    RESPONSE = "response"
    """`input` is a text, or the items of a conversation (OpenAI's responses)."""
    PROMPT = "prompt"
    """A text, a list of token ids, or a list of these."""
    INPUT = "input"
    """A text, a list of token ids, or a list of these in `input`; or a conversation."""
    DOCUMENTS = "documents"
    """A query and documents."""
    PAIRS = "pairs"
    """Two texts or lists of texts that are compared."""
    ITEMS = "items"
    """A query and items, as text or token ids."""
    TEXTS = "texts"
    """Texts, images, or mixed inputs (Cohere's embeddings)."""
    TEXT_TO_TOKENIZE = "text to tokenize"
    """A text or a conversation of any length: vLLM does not compare it with the context."""
    TOKENS = "tokens"
    """Token ids."""
    ANY = "any"
    """Any of these: the body's fields decide."""
    AUDIO = "audio"
    """A file in a form."""
    QUESTIONS = "questions"
    """Questions about a text, images, audio or videos."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the gateway checks in a request before it queues it."""

    input: InputKind
    """The input whose length and number of items are limited."""
    choices: bool = False
    """The body's `n` asks for several answers; prompts times `n` is limited."""
    service_tier: bool = False
    """The body's `service_tier` selects the lane, and the answer names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One row of the table."""

    path: str
    """At the gateway, by POST, and of the engine's own application, which answers it."""
    task: Task
    policy: Policy
    summary: str
    """For the API's description."""
    request_schema: str
    """The name of the body's schema in the API's description (`gateway/apis/`)."""
    response_schema: str
    """The name of the schema of an answer that is not streamed."""
    body: BodyKind = BodyKind.JSON
    model: ModelField = ModelField.OPTIONAL
    errors: ErrorStyle = ErrorStyle.OPENAI
    stream: StreamFormat | None = None
    """What an answer with `stream: true` consists of; None: the endpoint does not stream."""
