"""The kinds of requests that a benchmark can send, with vLLM's names for them."""

from __future__ import annotations

CHAT = "openai-chat"
PATHS = {CHAT: "/v1/chat/completions", "openai": "/v1/completions"}
"""The path of each kind."""
