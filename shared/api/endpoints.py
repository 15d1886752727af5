"""The endpoint table: every vLLM route that can be called through the queue, and how it is called.

To add an endpoint, add a row here, its schemas to `gateway/routes/schemas.py` and its answer to
`worker/engines/simulated/api.py`. The row is all that the others need: the gateway routes, checks
and documents the path (`gateway/routes`, `gateway/http/body.py`, `gateway/jobs/admission.py`), the
worker calls the engine's route (`worker/run/job_run.py`).
"""

from __future__ import annotations

from shared.api.endpoint import Endpoint, InputKind, Policy, StreamFormat, Task

_ROWS = (
    Endpoint(
        path="/v1/chat/completions",
        task=Task.GENERATE,
        stream=StreamFormat.CHAT_CHUNKS,
        policy=Policy(InputKind.MESSAGES, choices=True, service_tier=True),
        summary="Answer a conversation (OpenAI chat)",
        request_schema="ChatRequest",
        response_schema="ChatCompletion",
    ),
    Endpoint(
        path="/v1/completions",
        task=Task.GENERATE,
        stream=StreamFormat.COMPLETION_CHUNKS,
        policy=Policy(InputKind.PROMPT, choices=True, service_tier=True),
        summary="Continue a text (OpenAI completions)",
        request_schema="CompletionRequest",
        response_schema="Completion",
    ),
)

ENDPOINTS: dict[str, Endpoint] = {row.path: row for row in _ROWS}
"""By path. What is not in this table is not served."""
