"""The simulated engine's embeddings, classes, scores and tokens, in vLLM 0.32's JSON.

Each prompt is a sequence of one step. Its numbers are made of the text: equal texts have equal
embeddings, and nothing else is meant by them.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Send

from worker.engines.interface import JOURNAL
from worker.engines.simulated.delivery import whole
from worker.engines.simulated.generation import Generation, Prompt, Sampling
from worker.engines.simulated.refusal import bad_value

DIMENSIONS = 16
_ONE_STEP = Sampling(n=1, seed=None, stop=(), include_stop=False, ignore_eos=True, min_tokens=0)


class PoolingResponse:
    """The response to a request whose prompts are computed in one step each.

    `answer` makes it, once all prompts are computed.
    """

    def __init__(
        self, prompts: Sequence[Prompt], max_model_len: int, answer: Callable[[], Response]
    ) -> None:
        self.generation = Generation(stream=False, journal=None)
        self._answer = answer
        journal = JOURNAL.get()
        for call, prompt in enumerate(prompts):
            if prompt.n_tokens > max_model_len:
                message = (
                    f"This model's maximum context length is {max_model_len} tokens. However, you "
                    f"requested {prompt.n_tokens} tokens in the input. Please reduce its length."
                )
                raise bad_value(message, "input_tokens", prompt.n_tokens)
            if journal is not None:
                journal.prompt(call, prompt.n_tokens)
            self.generation.add(call, prompt, _ONE_STEP, 1)

    @property
    def stream(self) -> bool:
        """These endpoints do not stream."""
        return False

    async def send_stream(self, send: Send) -> None:
        """See `stream`."""
        raise AssertionError("these endpoints do not stream")

    async def full(self) -> Response:
        """The response in one piece."""
        return await whole(self.generation, lambda _: self._answer())


def embedding(prompt: Prompt) -> list[float]:
    """A vector of length 1, always the same for the same text."""
    state, numbers = prompt.digest, []
    for _ in range(DIMENSIONS):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        numbers.append((state >> 16) / 16384 - 1)
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return [number / length for number in numbers]


def score(first: str, second: str) -> float:
    """Between 0 and 1; equal texts have 1."""
    pairs = zip(embedding(Prompt(first)), embedding(Prompt(second)), strict=True)
    return (1 + sum(a * b for a, b in pairs)) / 2


def usage(prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Of an answer without generated tokens."""
    tokens = sum(prompt.n_tokens for prompt in prompts)
    return {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def list_answer(
    response_id: str, model: str, data: list[dict[str, Any]], prompts: Sequence[Prompt]
) -> dict[str, Any]:
    """The answer of most of these endpoints."""
    return {
        "id": response_id,
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": usage(prompts),
    }


def packed(numbers: Sequence[float]) -> bytes:
    """As float32, little-endian."""
    return struct.pack(f"<{len(numbers)}f", *numbers)


def embeddings(
    response_id: str, model: str, prompts: Sequence[Prompt], encoding: str, kind: str
) -> Response:
    """Embeddings, or pooled outputs (`kind`: `embedding` or `pooling`)."""
    vectors = [embedding(prompt) for prompt in prompts]
    if encoding.startswith("bytes"):
        return _bytes(response_id, model, prompts, vectors, with_metadata=encoding == "bytes")
    name = "embedding" if kind == "embedding" else "data"
    data = [
        {
            "index": index,
            "object": kind,
            name: base64.b64encode(packed(vector)).decode() if encoding == "base64" else vector,
        }
        for index, vector in enumerate(vectors)
    ]
    return JSONResponse(list_answer(response_id, model, data, prompts))


def _bytes(
    response_id: str,
    model: str,
    prompts: Sequence[Prompt],
    vectors: list[list[float]],
    *,
    with_metadata: bool,
) -> Response:
    size = 4 * DIMENSIONS
    items = [
        {
            "index": index,
            "embed_dtype": "float32",
            "endianness": "native",
            "start": index * size,
            "end": (index + 1) * size,
            "shape": [DIMENSIONS],
        }
        for index in range(len(vectors))
    ]
    answer = list_answer(response_id, model, items, prompts)
    del answer["object"]
    answer["usage"] = {name: answer["usage"][name] for name in ("prompt_tokens", "total_tokens")}
    headers = {"metadata": json.dumps(answer)} if with_metadata else None
    content = b"".join(map(packed, vectors))
    return Response(content, headers=headers, media_type="application/octet-stream")


def cohere_embeddings(response_id: str, prompts: Sequence[Prompt], kinds: list[str]) -> Response:
    """In Cohere's shape, by type; the binary types are one bit for each number."""
    vectors = [embedding(prompt) for prompt in prompts]
    encoders: dict[str, Callable[[list[float]], Any]] = {
        "float": lambda vector: vector,
        "base64": lambda vector: base64.b64encode(packed(vector)).decode(),
        "ubinary": _bits,
        "binary": lambda vector: [byte - 128 for byte in _bits(vector)],
    }
    by_kind = {kind: [encoders[kind](vector) for vector in vectors] for kind in kinds}
    tokens = {"input_tokens": usage(prompts)["prompt_tokens"], "image_tokens": 0}
    return JSONResponse(
        {
            "id": response_id,
            "embeddings": by_kind,
            "texts": [prompt.text for prompt in prompts],
            "meta": {"api_version": {"version": "2"}, "billed_units": tokens},
            "response_type": "embeddings_by_type",
        }
    )


def _bits(vector: list[float]) -> list[int]:
    bits = "".join("1" if number >= 0 else "0" for number in vector)
    return [int(bits[start : start + 8], 2) for start in range(0, len(bits), 8)]


def classes(response_id: str, model: str, prompts: Sequence[Prompt]) -> Response:
    """Two classes."""
    data = []
    for index, prompt in enumerate(prompts):
        first = prompt.digest % 1000 / 1000
        label = "LABEL_0" if first >= 0.5 else "LABEL_1"
        probs = [first, 1 - first]
        data.append({"index": index, "label": label, "probs": probs, "num_classes": 2})
    return JSONResponse(list_answer(response_id, model, data, prompts))


def scores(
    response_id: str, model: str, values: list[float], prompts: Sequence[Prompt]
) -> Response:
    """One for each pair or item."""
    data = [
        {"index": index, "object": "score", "score": value} for index, value in enumerate(values)
    ]
    return JSONResponse(list_answer(response_id, model, data, prompts))


def ranking(
    response_id: str,
    model: str,
    documents: list[Any],
    values: list[float],
    top_n: int,
    prompts: Sequence[Prompt],
) -> Response:
    """The documents, best first."""
    results: list[dict[str, Any]] = [
        {
            "index": index,
            "document": {
                "text": document if isinstance(document, str) else None,
                "multi_modal": None if isinstance(document, str) else document.get("content", []),
            },
            "relevance_score": value,
        }
        for index, (document, value) in enumerate(zip(documents, values, strict=True))
    ]
    results.sort(key=lambda result: result["relevance_score"], reverse=True)
    tokens = usage(prompts)["prompt_tokens"]
    return JSONResponse(
        {
            "id": response_id,
            "model": model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "results": results[: top_n or None],
        }
    )
