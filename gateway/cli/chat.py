"""`flotilla chat`: a conversation in the terminal, streamed."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import httpx
import typer

from gateway.cli.command import Session, gateway_command
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.follow import text_of
from gateway.cli.gateway_client import ServerEvent, parse_event, raise_for
from gateway.cli.options import Model
from gateway.cli.output import figure, milliseconds, note
from gateway.cli.submit_command import CHAT
from shared.client.sse import EventSplitter
from shared.platform.printable import printable

app = typer.Typer()


@dataclass
class Turn:
    """One answer, as it arrived."""

    text: str = ""
    job_id: str = ""
    ttft_s: float | None = None
    last_s: float | None = None
    """Time from the request to its last token."""
    usage: dict[str, Any] = field(default_factory=dict)


@gateway_command(
    app, "chat", "flotilla chat", 'flotilla chat "What is Flotilla?" --temperature 0 --stats'
)
def chat(
    session: Session,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="One question; without it a conversation."),
    ] = None,
    model: Model = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens per answer.")] = None,
    stats: Annotated[
        bool, typer.Option(help="After each answer: wait, time to first token, tokens/s, worker.")
    ] = False,
) -> ExitCode:
    """Chat with a model. Ctrl-C ends an answer, Ctrl-D the conversation; /clear forgets it."""
    options = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
    request = {name: value for name, value in options.items() if value is not None}
    messages = [{"role": "system", "content": system}] if system else []
    start = list(messages)
    session.client.get("/v1/models")  # so that a wrong address or key shows at once
    if prompt is not None:
        messages.append({"role": "user", "content": prompt})
        return _once(session, request | {"messages": messages}, stats=stats)
    for text in _questions():
        if text == "/clear":
            messages = list(start)
            continue
        messages.append({"role": "user", "content": text})
        turn = _answer(session, request | {"messages": messages})
        print()
        if stats:
            note(_stats(session, turn))
        messages.append({"role": "assistant", "content": turn.text})
    return ExitCode.OK


def _once(session: Session, request: dict[str, Any], *, stats: bool) -> ExitCode:
    if session.as_json:
        session.show(session.client.post(CHAT, request), str)
        return ExitCode.OK
    turn = _answer(session, request)
    print()
    if stats:
        note(_stats(session, turn))
    return ExitCode.OK


def _questions() -> Iterator[str]:
    """The lines that are typed, up to the end of the input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 -- gives input() a history
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            text = input(prompt).strip()
        except EOFError:
            return
        if text:
            yield text


def _answer(session: Session, request: dict[str, Any]) -> Turn:
    """Ask and print the answer as it comes. Ctrl-C cancels the job and keeps what has come."""
    turn, began = Turn(), time.monotonic()
    body = request | {"stream": True, "stream_options": {"include_usage": True}}
    try:
        with session.client.resuming() as http, http.stream("POST", CHAT, json=body) as answer:
            raise_for(answer)
            turn.job_id = answer.headers.get("x-flotilla-job-id", "")
            splitter = EventSplitter()
            for data in answer.iter_raw():
                for block in splitter.feed(data):
                    _take_in(turn, parse_event(block), began)
    except httpx.HTTPError as error:
        raise CommandError(f"the answer broke off: {error}", ExitCode.UNREACHABLE) from error
    except KeyboardInterrupt:
        note("\nInterrupted: its job is cancelled.")
    return turn


def _take_in(turn: Turn, event: ServerEvent, began: float) -> None:
    """Print one event of the stream."""
    if event.comment:
        if sys.stderr.isatty() and not turn.text:
            note(event.comment)
        return
    if event.data in (b"", b"[DONE]"):
        return
    chunk = event.json()
    if "error" in chunk:
        raise CommandError(chunk["error"]["message"])
    turn.usage = chunk.get("usage") or turn.usage
    text = text_of(chunk)
    if text:
        turn.last_s = time.monotonic() - began
        turn.ttft_s = turn.last_s if turn.ttft_s is None else turn.ttft_s
        turn.text += text
        sys.stdout.write(printable(text))
        sys.stdout.flush()


def _stats(session: Session, turn: Turn) -> str:
    """The line below an answer."""
    job: dict[str, Any] = {}
    with contextlib.suppress(CommandError):  # the answer is there, whatever has become of its job
        job = session.client.get(f"/jobs/{turn.job_id}") if turn.job_id else {}
    attempts, tokens = job.get("attempts"), turn.usage.get("completion_tokens")
    parts = []
    if job.get("started_at"):
        parts.append(f"queue {milliseconds(job['started_at'] - job['created_at'])}")
    if turn.ttft_s is not None and turn.last_s is not None:
        parts.append(f"TTFT {milliseconds(turn.ttft_s)}")
        if tokens and turn.last_s > turn.ttft_s:
            parts.append(f"{figure((tokens - 1) / (turn.last_s - turn.ttft_s))} tok/s")
    if tokens:
        parts.append(f"{tokens} tokens")
    if attempts:
        parts.append(f"worker {attempts[-1]['worker']}")
    return ", ".join(parts)
