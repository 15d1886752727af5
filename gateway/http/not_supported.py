"""Routes of OpenAI, Anthropic and vLLM that are not served yet. README.md has the same list."""

from __future__ import annotations

from shared.api.endpoints import ENDPOINTS
from shared.api.errors import NotSupported

_SERVED = ", ".join(f"POST {path}" for path in ENDPOINTS)

NOT_SUPPORTED: dict[str, str] = {
    "/v1/responses/compact": "compaction of responses",
    "/v1/responses/input_tokens": "counts of a response's input tokens",
    "/v1/files": "files",
    "/v1/uploads": "uploads",
    "/v1/batches": "batches",
    "/v1/messages": "Anthropic's messages",
    "/v1/moderations": "moderations",
    "/v1/images": "images",
    "/v1/audio": "audio",
    "/v1/realtime": "realtime",
    "/v1/assistants": "assistants",
    "/v1/threads": "threads",
    "/v1/vector_stores": "vector stores",
    "/v1/fine_tuning": "fine-tuning",
}
"""The name of what each path, and all paths below it, would serve."""


def not_supported(path: str) -> NotSupported | None:
    """The error for a request to one of these paths; None for any other path."""
    parts = path.rstrip("/").split("/")
    for end in range(2, len(parts) + 1):
        if name := NOT_SUPPORTED.get("/".join(parts[:end])):
            return NotSupported(
                f"Flotilla does not support {name} yet. It serves {_SERVED}, GET /v1/models and "
                "/jobs; README.md lists what is missing under `Not supported yet`."
            )
    return None
