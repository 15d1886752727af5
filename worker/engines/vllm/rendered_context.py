"""The context of each engine call: its rendered prompt, media, adapter and model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from zlib import crc32

from worker.engines.prompt_context import SCHEME, Context, checksum_of_tokens
from worker.engines.vllm import weights

_MOST_ADAPTERS = 256


class Contexts:
    """The contexts of the calls of one engine. `model`: checksum of its weights."""

    def __init__(self, model: int) -> None:
        self._model = model
        # vLLM makes a new request object whenever it loads an adapter, in place too.
        self._adapters: dict[str, tuple[Any, int]] = {}

    @classmethod
    async def start(cls, model: Any) -> Contexts:
        """`model`: vLLM's model configuration. Reads its weights' files in a thread."""
        revision = getattr(model, "revision", None)
        return cls(await asyncio.to_thread(weights.checksum, str(model.model), revision))

    async def of(self, prompt: Any, adapter: Any) -> Context:
        """The context of a call with vLLM's rendered `prompt` and its LoRARequest or None."""
        ids = media = 0
        for part in _parts(prompt):
            ids = checksum_of_tokens(part.get("prompt_token_ids") or (), ids)
            hashes = part.get("mm_hashes")
            if hashes:
                media = crc32(repr(sorted(hashes.items())).encode(), media)
        loaded = 0 if adapter is None else await self._adapter(adapter)
        return Context(SCHEME, ids, media, loaded, self._model)

    async def _adapter(self, adapter: Any) -> int:
        name = adapter.lora_name
        known, total = self._adapters.get(name, (None, 0))
        if known is not adapter:
            if len(self._adapters) >= _MOST_ADAPTERS:
                self._adapters.clear()
            files = await asyncio.to_thread(weights.checksum, adapter.lora_path)
            total = crc32(name.encode(), files)
            self._adapters[name] = adapter, total
        return total


def _parts(prompt: Any) -> Iterator[dict[str, Any]]:
    """A prompt; of a model with an encoder, the encoder's and the decoder's."""
    if isinstance(prompt, dict):
        nested = [prompt[key] for key in ("encoder_prompt", "decoder_prompt") if prompt.get(key)]
        yield from nested or [prompt]
