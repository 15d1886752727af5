"""One answer on its way from the engine to the job: through the hooks, then on.

With `after` hooks it is withheld until it is complete. With `after_chunk` hooks alone a stream is
passed on chunk by chunk.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.types import Message, Send

from shared.job.errors import AnswerTooLarge, FlotillaError, HookFailed, Refused
from worker.engines.interface import Journal
from worker.hooks.calling import HookCaller, failed
from worker.hooks.held_output import Held, HeldEvent, HeldOutput, json_object
from worker.hooks.interface import Answer, Request
from worker.hooks.loading import Hooks

log = logging.getLogger("flotilla.hooks")

_DONE = b"data: [DONE]\n\n"
_MOST_BYTES = 16 << 20
_MOST_OBJECTS = 25_000
"""Of an answer in one piece. Each log probability is one; a million numbers are none."""


class CheckedAnswer:
    """`take` is the `send` of the engine's application; `output` is its journal."""

    def __init__(
        self, caller: HookCaller, hooks: Hooks, request: Request, journal: Journal, send: Send
    ) -> None:
        n = request.body.get("n")
        self.output = HeldOutput(journal, n if isinstance(n, int) and n > 0 else 1)
        self.stopped = asyncio.Event()
        """The engine's request is to be aborted."""
        self._caller, self._hooks, self._request = caller, hooks, request
        self._send = send
        self._start: Message | None = None
        self._started = False
        self._body = bytearray()
        self._content_type = ""
        self._given = 0  # events that the hooks have got and hold
        self._checking: asyncio.Task[None] | None = None
        self._ended = False

    @property
    def _streamed(self) -> bool:
        return self._content_type.startswith("text/event-stream")

    async def take(self, message: Message) -> None:
        """A message of the engine's application."""
        if message["type"] == "http.response.start":
            self._start = message
            for name, value in message["headers"]:
                if name == b"content-type":
                    self._content_type = value.decode("latin-1")
            if self._streamed and not self._hooks.after:
                self._checking = asyncio.create_task(self._check_chunks(), name="hooks")
        elif self._streamed:
            self.output.chunk(message.get("body", b""))
        else:
            self._body += message.get("body", b"")

    async def finish(self) -> None:
        """The engine's application has ended: pass on what is left. Raises Refused, HookFailed."""
        if self._start is None:
            return
        if self._checking is not None:
            self._ended = True
            self.output.arrived.set()
            await self._checking
        if not self._streamed:
            await self._finish_whole()
            return
        ends = self.output.items[len(self.output.before_end()) :]
        end = next((item for item in ends if isinstance(item, HeldEvent)), None)
        if end is None or end.part is None:
            await self._check(final=True)
            await self._pass_on(list(self.output.items))
        else:  # an error
            await self._send_start()
            for item in ends:
                if isinstance(item, HeldEvent):
                    await self._send_body(item.raw)
            self.output.hide()

    async def fail(self, error: FlotillaError) -> None:
        """Answer with an error instead, or end the stream with one."""
        if self._started:
            await self._send_body(b"data: " + error.to_openai() + b"\n\n")
            if "/completions" in self._request.path:
                await self._send_body(_DONE)
        else:
            self._started = True
            await send_error(self._send, error)
        self.output.hide()

    def close(self) -> None:
        """Nothing more is passed on."""
        if self._checking is not None:
            self._checking.cancel()

    async def _check_chunks(self) -> None:
        """Pass chunks on as they come, until `finish`. Raises Refused, HookFailed."""
        try:
            while not self._ended:
                await self.output.arrived.wait()
                self.output.arrived.clear()
                await self._check(final=False)
        except (Refused, HookFailed):
            self.stopped.set()
            raise

    async def _check(self, *, final: bool) -> None:
        items = self.output.before_end() if final else self.output.whole_chunks()
        parts = [each.part for each in items if isinstance(each, HeldEvent) and each.part]
        if not final and len(parts) == self._given:
            return
        answer = Answer(self._request, parts, streamed=self._streamed, final=final)
        hooks = self._hooks.at_end if final else self._hooks.after_chunk
        if await self._caller.after(hooks, answer):
            self._given = 0
            await self._pass_on(items)
        else:
            self._given = len(parts)

    async def _finish_whole(self) -> None:
        """An answer that is not streamed. Raises Refused if it is too large, and as `_check`."""
        assert self._start is not None
        raw, status = bytes(self._body), self._start["status"]
        is_json = self._content_type.startswith("application/json")
        if status == 200 and is_json and is_too_large(raw):
            raise Refused(
                f"The hooks of this model's pool check answers of at most {_MOST_BYTES} bytes and "
                f"{_MOST_OBJECTS} JSON objects. Ask for less at once, or for a stream.",
                AnswerTooLarge.status,
                AnswerTooLarge.code,
            )
        is_text = self._content_type.startswith("text/")
        part = {"text": raw.decode(errors="replace")} if is_text else json_object(raw)
        if status != 200 or part is None:  # an error, or nothing with a text
            await self._send_start()
            await self._send_body(raw)
            self.output.hide()
            return
        event = HeldEvent(raw, part)
        self.output.items.append(event)
        items = list(self.output.items)
        answer = Answer(self._request, [part], streamed=False, final=True)
        await self._caller.after(self._hooks.at_end, answer)
        body = _rendered(event)
        if is_text and event.changed:
            body = str(part["text"]).encode()
        self.output.release(items)
        await self._send_start(len(body))
        await self._send_body(body)

    async def _pass_on(self, items: list[Held]) -> None:
        """The first items of the output, of which there may be more by now."""
        rendered = [_rendered(each) for each in items if isinstance(each, HeldEvent)]
        self.output.release(items)
        if rendered:
            await self._send_start()
        for data in rendered:
            await self._send_body(data)

    async def _send_start(self, length: int | None = None) -> None:
        if self._started or self._start is None:
            return
        self._started = True
        headers = list(self._start["headers"])
        if length is not None:
            headers = [each for each in headers if each[0] != b"content-length"]
            headers.append((b"content-length", str(length).encode()))
        await self._send({**self._start, "headers": headers})

    async def _send_body(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


def is_too_large(answer: bytes) -> bool:
    """Whether to parse an answer for hooks would hold up the worker's other requests."""
    return len(answer) > _MOST_BYTES or answer.count(b"{") > _MOST_OBJECTS


async def send_error(send: Send, error: FlotillaError) -> None:
    """A whole answer with OpenAI's error object."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error.to_openai()})


def _rendered(event: HeldEvent) -> bytes:
    try:
        return event.rendered()
    except (TypeError, ValueError) as error:
        log.error("a hook has changed an answer into what is no JSON: %s", error)
        raise failed() from error
