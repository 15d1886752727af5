"""The endpoint table: every vLLM route that can be called through the queue, and how it is called.

To add an endpoint, add a row here and its answer to `worker/engines/simulated/api.py`. The row is
all that the others need: the gateway routes, checks and documents the path (`gateway/routes`,
`gateway/http/body.py`, `gateway/jobs/admission.py`), the worker calls the engine's route
(`worker/run/job_run.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Task(StrEnum):
    """What a model has to be able to do, in vLLM's words."""

    GENERATE = "generate"


class BodyKind(StrEnum):
    """How a request's body is encoded."""

    JSON = "json"


class StreamFormat(StrEnum):
    """The `object` of the chunks in a streamed answer (server-sent events)."""

    CHAT_CHUNKS = "chat.completion.chunk"
    COMPLETION_CHUNKS = "text_completion"


class InputKind(StrEnum):
    """The field that holds the model's input; each kind has limits of its own."""

    MESSAGES = "messages"
    """A conversation: a list of messages."""
    PROMPT = "prompt"
    """A text, a list of token ids, or a list of these."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the gateway checks in a request before it queues it."""

    input: InputKind
    """The input whose length and number of items are limited."""
    choices: bool
    """The body's `n` asks for several answers; prompts times `n` is limited."""
    service_tier: bool
    """The body's `service_tier` selects the lane."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row of the table."""

    path: str
    """At the gateway, by POST."""
    engine_path: str
    """The route of the engine's own application that answers it."""
    task: Task
    body: BodyKind
    model_field: str
    """The field of the body that names the model."""
    stream: StreamFormat | None
    """What an answer with `stream: true` consists of; None: the endpoint does not stream."""
    policy: Policy
    summary: str
    """For the API's description."""
    request_schema: str
    """The name of the body's schema in the API's description (`gateway/routes/openapi.py`)."""
    response_schema: str
    """The name of the schema of an answer that is not streamed."""


ENDPOINTS: dict[str, Endpoint] = {
    endpoint.path: endpoint
    for endpoint in (
        Endpoint(
            path="/v1/chat/completions",
            engine_path="/v1/chat/completions",
            task=Task.GENERATE,
            body=BodyKind.JSON,
            model_field="model",
            stream=StreamFormat.CHAT_CHUNKS,
            policy=Policy(input=InputKind.MESSAGES, choices=True, service_tier=True),
            summary="Answer a conversation (OpenAI chat)",
            request_schema="ChatRequest",
            response_schema="ChatCompletion",
        ),
        Endpoint(
            path="/v1/completions",
            engine_path="/v1/completions",
            task=Task.GENERATE,
            body=BodyKind.JSON,
            model_field="model",
            stream=StreamFormat.COMPLETION_CHUNKS,
            policy=Policy(input=InputKind.PROMPT, choices=True, service_tier=True),
            summary="Continue a text (OpenAI completions)",
            request_schema="CompletionRequest",
            response_schema="Completion",
        ),
    )
}
"""By path. What is not in this table is not served."""
