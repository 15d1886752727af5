"""The simulated engine's responses to speech-to-text requests, in vLLM 0.32's JSON and chunks.

What is spoken is invented: it depends on the file's bytes. A second has 32,000 of them.
"""

from __future__ import annotations

import json
import math
import time
from typing import Any

from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response
from starlette.types import Message, Send

from worker.engines.interface import JOURNAL
from worker.engines.simulated.delivery import DONE, event_bytes, event_stream, part, whole
from worker.engines.simulated.generation import Delta, Generation, Prompt
from worker.engines.simulated.refusal import RefusedError
from worker.engines.simulated.request import Body
from worker.engines.simulated.sampling import room, sampling

_BYTES_PER_S = 32_000
_ID_PREFIXES = {"transcription": "transcribe", "translation": "translate"}
_FORMATS = ("text", "json", "verbose_json")


class AudioBody(Body):
    """The fields of a form that the simulated engine uses."""

    response_format: str = "json"  # type: ignore[assignment]
    stream_include_usage: bool = False
    max_completion_tokens: int | None = None


class AudioResponse:
    """The response to a transcription, or to a translation."""

    def __init__(
        self,
        task: str,
        body: AudioBody,
        data: bytes,
        response_id: str,
        model: str,
        max_model_len: int,
    ) -> None:
        """`task`: `transcription` or `translation`."""
        self.stream = bool(body.stream)
        self.generation = Generation(stream=self.stream, journal=JOURNAL.get())
        prompt = Prompt(f"audio of {len(data)} bytes: {data[:4096].hex()}")
        limit = room(Prompt("audio"), body.max_completion_tokens, max_model_len)
        self.generation.add(0, prompt, sampling(body, None), limit)
        self._with_usage = task == "transcription"
        self._seconds = len(data) / _BYTES_PER_S
        self._verbose = body.response_format == "verbose_json"
        self._include_usage = body.stream_include_usage
        self._n_prompt = prompt.n_tokens
        self._head = {
            "id": f"{_ID_PREFIXES[task]}-{response_id}",
            "object": f"{task}.chunk",
            "created": int(time.time()),
        }
        self._model = model

    async def send_stream(self, send: Send) -> None:
        """Send the response as server-sent events, each in a body message of its own."""
        n_generated = 0
        async with event_stream(send, last=DONE):
            while deltas := await self.generation.next_deltas():
                for delta in deltas:
                    n_generated += len(delta.token_ids)
                    if delta.text or delta.finish_reason is not None:
                        await send(self._chunk([_choice(delta)]))
            if self._include_usage:
                usage = {
                    "prompt_tokens": self._n_prompt,
                    "total_tokens": self._n_prompt + n_generated,
                    "completion_tokens": n_generated,
                }
                await send(self._chunk([], usage=usage))

    async def full(self) -> Response:
        """The response in one piece."""
        return await whole(self.generation, self._body)

    def _body(self, deltas: list[Delta]) -> dict[str, Any]:
        text = "".join(delta.text for delta in deltas)
        if not self._verbose:
            usage = {"usage": {"type": "duration", "seconds": math.ceil(self._seconds)}}
            return {"text": text, **(usage if self._with_usage else {})}
        segment = {"id": 0, "start": 0.0, "end": self._seconds, "text": text}
        described = {"duration": self._seconds, "language": "en", "text": text}
        return {**described, "segments": [segment], "words": None}

    def _chunk(self, choices: list[Any], **more: Any) -> Message:
        chunk = {**self._head, "model": self._model, "choices": choices, **more}
        return part(event_bytes(json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))))


async def read_form(form: FormData) -> tuple[AudioBody, bytes]:
    """The fields and the file of a form. Raises RefusedError."""
    file = form.get("file")
    if file is None:
        raise RefusedError("1 validation error:\n  file: Field required", "body.file")
    if not isinstance(file, UploadFile):
        message = "Expected 'file' to be a file-like object, not 'str'."
        raise RefusedError(message, kind="UnprocessableEntityError", status=422)
    fields = {name: value for name, value in form.items() if isinstance(value, str)}
    try:
        body = AudioBody.model_validate(fields)
    except ValidationError as error:
        raise RefusedError(str(error), kind="Bad Request") from error
    if body.response_format not in _FORMATS:
        known = ", ".join(f"`{name}`" for name in _FORMATS)
        raise RefusedError(f"Currently only support response_format: {known}")
    return body, await file.read()


def _choice(delta: Delta) -> dict[str, Any]:
    choice: dict[str, Any] = {"delta": {"content": delta.text}}
    if delta.finish_reason is not None:
        choice |= {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
    return choice
