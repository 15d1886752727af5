"""Requests to the simulated engine for responses (OpenAI's Responses API)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from worker.engines.simulated.generation import Prompt
from worker.engines.simulated.refusal import RefusedError, bad_value
from worker.engines.simulated.request import Body


class ResponseBody(Body):
    """A request for a response (OpenAI's Responses API)."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] = Field(default_factory=list)
    text: dict[str, Any] | None = None

    def prompt(self) -> Prompt:
        """The instructions and the items as one prompt."""
        items = self.input if isinstance(self.input, list) else [{"content": self.input}]
        lines = [self.instructions] if self.instructions else []
        return Prompt("\n".join([*lines, *map(_item_text, items)]))

    def check(self) -> None:
        """Raise RefusedError for what this engine does not do."""
        if self.previous_response_id:
            raise RefusedError(
                f"Response with id '{self.previous_response_id}' not found.",
                "response_id",
                kind="invalid_request_error",
                status=404,
            )
        if ((self.text or {}).get("format") or {}).get("type", "text") != "text":
            raise bad_value("The simulated engine has no `text.format`.", "text")


def _item_text(item: dict[str, Any]) -> str:
    """An item as a line of a prompt."""
    content = item.get("content") or item.get("output") or item.get("arguments") or ""
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return f"{item.get('role', 'user')}: {content}"
