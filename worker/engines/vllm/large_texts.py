"""Tokenizes large texts in a thread of their own.

vLLM tokenizes all texts in one thread. One of megabytes takes seconds there, in which the texts of
all other requests would wait. The tokenizer itself does not need the interpreter's lock.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shared.platform.fast_paths import FastPath, parameters_differ

LARGE_CHARS = 1 << 15

_PARTS = ("_tokenize_prompt", "_tokenize_prompt_async")
_SEPARATE = FastPath("vLLM's renderer")


def install(renderer: Any) -> None:
    """Have this renderer of vLLM's tokenize that way, where it is as expected."""
    missing = [name for name in _PARTS if not hasattr(renderer, name)]
    if missing:
        _SEPARATE.disable(f"it has no {', '.join(missing)}")
    if not _SEPARATE.enabled():
        return
    tokenize: Any
    usual: Any
    tokenize, usual = (getattr(renderer, name) for name in _PARTS)
    if problem := parameters_differ(tokenize, "prompt params"):
        _SEPARATE.disable(problem)
        return
    thread = ThreadPoolExecutor(1, "large-texts")

    def tokenize_async(prompt: Any, params: Any) -> Any:
        text = prompt["prompt"]
        if isinstance(text, str) and len(text) > LARGE_CHARS:
            return asyncio.get_running_loop().run_in_executor(thread, tokenize, prompt, params)
        return usual(prompt, params)

    renderer._tokenize_prompt_async = tokenize_async  # noqa: SLF001
