"""The context of each engine call: checksums of its rendered prompt, media, adapter and weights.

Weights, of a model or of an adapter, are told apart without reading all of them.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from worker.engines.interface import SCHEME, Context

_CONFIGS = ("config.json", "adapter_config.json", "params.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""Only files of the first kind that a folder has are read, as by vLLM."""
_SAMPLES, _SAMPLE_BYTES = 16, 4096
_MOST_ADAPTERS = 256


class Contexts:
    """The contexts of the calls of one engine. `model`: checksum of its weights."""

    def __init__(self, model: int) -> None:
        self._model = model
        # vLLM makes a new request object whenever it loads an adapter, in place too.
        self._adapters: dict[str, tuple[Any, int]] = {}

    async def of(self, prompt: Any, adapter: Any) -> Context:
        """The context of a call with vLLM's rendered `prompt` and its LoRARequest or None."""
        ids = media = 0
        for part in _prompts(prompt):
            ids = crc32(array("q", part.get("prompt_token_ids") or ()).tobytes(), ids)
            if hashes := part.get("mm_hashes"):
                media = crc32(repr(sorted(hashes.items())).encode(), media)
        loaded = 0 if adapter is None else await self._adapter(adapter)
        return Context(SCHEME, ids, media, loaded, self._model)

    async def _adapter(self, adapter: Any) -> int:
        name = adapter.lora_name
        known, total = self._adapters.get(name, (None, 0))
        if known is not adapter:
            if len(self._adapters) >= _MOST_ADAPTERS:
                self._adapters.clear()
            files = await asyncio.to_thread(checksum_of_weights, adapter.lora_path)
            total = crc32(name.encode(), files)
            self._adapters[name] = adapter, total
        return total


def _prompts(prompt: Any) -> Iterator[dict[str, Any]]:
    """A prompt; of a model with an encoder, the encoder's and the decoder's."""
    if isinstance(prompt, dict):
        nested = [prompt[key] for key in ("encoder_prompt", "decoder_prompt") if prompt.get(key)]
        yield from nested or [prompt]


def checksum_of_weights(name: str, revision: str | None = None) -> int:
    """A checksum of the weights' files, by their names, sizes and 16 samples of each; not 0.

    `name`: a folder, a file, or the id of a model that was downloaded from a hub; of what can't be
    found, its name and revision. Two copies in different places have the same checksum.
    """
    from huggingface_hub import snapshot_download

    place, total = Path(name).expanduser(), 0
    try:
        if not place.exists():
            place = Path(snapshot_download(name, revision=revision, local_files_only=True))
        for part in _parts(place):
            total = crc32(part, total)
    except (OSError, ValueError):  # it is not on this machine, or no name of a hub
        total = 0
    return total or crc32(f"{name}@{revision}".encode()) or 1


def _parts(place: Path) -> Iterator[bytes]:
    if place.is_file():
        yield from _samples(place)
        return
    files = sorted(path for path in place.iterdir() if path.is_file())
    kinds = {path.suffix for path in files}
    kind = next((suffix for suffix in _WEIGHTS if suffix in kinds), None)
    for path in files:
        if path.name in _CONFIGS:
            yield path.read_bytes()
        elif path.suffix == kind:
            yield path.name.encode()
            yield from _samples(path)


def _samples(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        yield str(size).encode()
        for number in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
            yield file.read(_SAMPLE_BYTES)
