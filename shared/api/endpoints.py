"""The vLLM routes that may be called through the queue. What is not in this table is not served."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route of vLLM's own application."""

    path: str
    needs: str
    """The task a model must have, in vLLM's word."""
    summary: str
    """For the API's documentation."""


ENDPOINTS: dict[str, Endpoint] = {
    endpoint.path: endpoint
    for endpoint in (
        Endpoint("/v1/chat/completions", "generate", "Answer a conversation (OpenAI chat)"),
        Endpoint("/v1/completions", "generate", "Continue a text (OpenAI completions)"),
    )
}
