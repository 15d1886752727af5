"""The simulated engine's ASGI application: the routes of the endpoint table and of operators.

Unknown fields are ignored, as in vLLM. A request that this engine can't use is one error, whatever
is wrong with it. Streams have what gateway, worker and the vendors' SDKs read of them, and no more.
Routes that generate no text have one small answer, whatever is asked. LoRA adapters have names and
paths, nothing else: their answers are those of the base model. A path that begins with `missing`
can't be loaded.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from shared.api.endpoints import ENDPOINTS
from shared.api.operator_actions import ACTIONS, LOAD_ADAPTER, UNLOAD_ADAPTER
from shared.fleet.pool import Pool
from worker.engines.interface import NO_ROUTE
from worker.engines.simulated import TOKENS

if TYPE_CHECKING:
    from worker.engines.simulated.engine import Generation, SimulatedEngine

_encode = msgspec.json.encode
_DEAD = (
    b'{"error":{"message":"The simulated engine is dead.","type":"InternalServerError",'
    b'"param":null,"code":500}}'
)


class EngineDead(Exception):
    """The engine is dead."""


class Disconnected(Exception):
    """The client has disconnected."""


class Refused(Exception):
    """The engine refuses a request; `response` is the error, in the shape of vLLM's."""

    def __init__(self, message: str, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        error = {"message": message, "type": kind, "param": None, "code": status}
        self.response = JSONResponse({"error": error}, status)


# --- requests ---

_NOT_SIMULATED = {"echo", "prompt_logprobs", "response_format", "structured_outputs", "suffix"}
_AtLeast1 = Annotated[int, Field(ge=1)]
_StopText = Annotated[str, Field(min_length=1)]
_Conversation = list[dict[str, Any]]


class TextRequest(BaseModel):
    """A request to any endpoint that generates text."""

    model: str | None = None
    messages: _Conversation | list[_Conversation] | None = None
    prompt: str | list[int] | list[str] | list[list[int]] | None = None
    input: str | _Conversation | None = None
    system: str | _Conversation | None = None
    instructions: str | None = None
    max_tokens: _AtLeast1 | None = None
    max_completion_tokens: _AtLeast1 | None = None
    max_output_tokens: _AtLeast1 | None = None
    min_tokens: int = 0
    n: Annotated[int, Field(ge=1, le=1 << 14)] | None = None
    seed: int | None = None
    stop: _StopText | list[_StopText] | None = None
    stop_sequences: list[_StopText] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: bool | Annotated[int, Field(ge=0, le=20)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool | None = False
    stream_options: dict[str, bool | None] | None = None
    return_token_ids: bool | None = None
    request_id: str = ""
    metadata: dict[str, Any] | None = None

    @property
    def n_alternatives(self) -> int | None:
        """How many alternatives each token gets; None: the answer has no logprobs."""
        if self.logprobs is True:
            return self.top_logprobs or 0
        return None if self.logprobs is False else self.logprobs

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        stop = self.stop_sequences or self.stop or ()
        return (stop,) if isinstance(stop, str) else tuple(stop)

    def with_usage(self, option: str = "include_usage") -> bool:
        """Whether this one of `stream_options` is set."""
        return bool(self.stream_options and self.stream_options.get(option))

    def prompts(self) -> list[str]:
        """At least one. Raises Refused."""
        given = self.messages or self.prompt or self.input
        if not given:
            raise Refused("The simulated engine can't use this request: it has no prompt.")
        several = isinstance(given, list) and not isinstance(given[0], dict | int)
        system = self.system or self.instructions
        before = f"system: {_content(system)}\n" if system else ""
        return [before + _text(each) for each in (given if several else [given])]

    def limit(self, prompt_tokens: int, max_model_len: int) -> int:
        """How many tokens the answer may have. Raises Refused."""
        left = max_model_len - prompt_tokens
        asked = self.max_completion_tokens or self.max_output_tokens or self.max_tokens
        if left < 1 or (asked or 0) > max_model_len:
            raise Refused(
                f"The simulated engine can't use this request: the prompt has {prompt_tokens} "
                f"tokens and max_tokens is {asked}; both together have room for {max_model_len}."
            )
        return min(left, asked or left)


def _parse(fields: dict[str, Any]) -> TextRequest:
    wrong = sorted(name for name in _NOT_SIMULATED & fields.keys() if fields[name])
    if not wrong:
        try:
            return TextRequest.model_validate(fields)
        except ValidationError as error:
            wrong = sorted({str(each["loc"][0]) for each in error.errors(include_input=False)})
    raise Refused(f"The simulated engine can't use this request: {', '.join(wrong)}.")


def _text(given: Any) -> str:
    """A text, token ids, or a conversation as one text."""
    return given if isinstance(given, str) else "\n".join(map(_line, given))


def _line(item: int | dict[str, Any]) -> str:
    if isinstance(item, int):
        return str(item)
    content = item.get("content") or item.get("output") or item.get("arguments") or ""
    return f"{item.get('role', 'user')}: {_content(content)}"


def _content(content: Any) -> str:
    if not isinstance(content, list):
        return str(content)
    return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


# --- answers ---


class Delta(NamedTuple):
    """One step's token of one choice."""

    choice: int
    token_ids: tuple[int, ...]
    text: str
    """May be empty, and may lag behind the tokens where a stop string could still begin."""
    finish_reason: str | None = None
    stop_reason: str | None = None


_TEXT_SENTINEL = "\0"
"""Marks where a delta's text goes in a chunk's template; no id or name contains it."""


class Answer:
    """The answer to a conversation, or to several: one choice for each. Others are derived."""

    prefix = "chatcmpl"
    kinds = ("chat.completion", "chat.completion.chunk")
    """`object` of a whole answer, and of a chunk."""

    def __init__(self, generation: Generation, response_id: str, model: str) -> None:
        self.generation, self.request = generation, generation.request
        self.response_id, self.model, self.created = response_id, model, int(time.time())
        self._n_prompt = generation.n_prompt_tokens
        self._n_tokens = [0] * len(generation.sequences)  # generated so far, by choice

    async def send_stream(self, send: Send) -> None:
        """Send it as server-sent events, each in a body message of its own."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        generation = self.generation
        try:
            deltas = await generation.next_deltas()
            for event in self._opening():
                await send(_part(event))
            while deltas:
                for delta in deltas:
                    await send(_part(self._event(delta)))
                generation.interceptor = self._interceptor
                deltas = await generation.next_deltas()
            for event in self._closing():
                await send(_part(event))
        except Disconnected:
            return
        except EngineDead:
            await send(_part(b"data: %b\n\n" % _DEAD))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send_whole(self, send: Send) -> None:
        """Send it in one piece; `null` to a client that has disconnected, as vLLM.

        Raises EngineDead, before anything is sent.
        """
        try:
            body = _encode(self._whole(await self.generation.next_deltas()))
        except Disconnected:
            body = b"null"
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _opening(self) -> Iterator[bytes]:
        """The events just before the first delta's."""
        for index in range(len(self._n_tokens)):
            said = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": said, "logprobs": None, "finish_reason": None}
            yield _data({**self._head, "choices": [choice]})

    def _event(self, delta: Delta) -> bytes:
        self._n_tokens[delta.choice] += 1
        if delta.finish_reason is None and self._templates:
            before, after = self._templates[delta.choice]
            return before + _encode(delta.text) + after
        return _data(self._chunk(delta))

    def _closing(self) -> Iterator[bytes]:
        """The events behind the last delta's."""
        if self.request.with_usage():
            usage = self._usage(sum(self._n_tokens))
            yield _data({**self._head, "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    def _whole(self, deltas: list[Delta]) -> dict[str, Any]:
        """The answer in one piece, of all deltas."""
        by_choice: list[list[Delta]] = [[] for _ in self._n_tokens]
        for delta in deltas:
            by_choice[delta.choice].append(delta)
        choices = [self._choice(each) for each in by_choice]
        return {**self._head, "choices": choices, "usage": self._usage(len(deltas))}

    @cached_property
    def _head(self) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{self.response_id}",
            "object": self.kinds[bool(self.request.stream)],
            "created": self.created,
            "model": self.model,
        }

    @cached_property
    def _templates(self) -> list[tuple[bytes, bytes]]:
        """By choice, a chunk before and after its text; empty if chunks differ in more."""
        request = self.request
        every_usage = request.with_usage("continuous_usage_stats")
        if request.n_alternatives is not None or request.return_token_ids or every_usage:
            return []
        choices = range(len(self._n_tokens))
        chunks = [_data(self._chunk(Delta(each, (), _TEXT_SENTINEL))) for each in choices]
        parts = [chunk.partition(_encode(_TEXT_SENTINEL)) for chunk in chunks]
        return [(before, after) for before, _, after in parts]

    @cached_property
    def _interceptor(self) -> Callable[[Delta], bool] | None:
        """Sends plain deltas' chunks past the request's task; not the last, which that handles."""
        journal = self.generation.journal
        if journal is None or len(self._templates) != 1:
            return None

        def intercept(delta: Delta) -> bool:
            if delta.finish_reason is None:
                journal.chunk(self._event(delta))
            return delta.finish_reason is None

        return intercept

    def _usage(self, n_generated: int) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self._n_prompt,
            "total_tokens": self._n_prompt + n_generated,
            "completion_tokens": n_generated,
        }
        if cached := self.generation.cached:
            usage["prompt_tokens_details"] = {"cached_tokens": sum(cached.values())}
        return usage

    def _chunk(self, delta: Delta) -> dict[str, Any]:
        chunk = {**self._head, "choices": [self._choice([delta])]}
        if self.request.with_usage("continuous_usage_stats"):
            chunk["usage"] = self._usage(self._n_tokens[delta.choice])
        return chunk

    def _choice(self, deltas: list[Delta]) -> dict[str, Any]:
        """A choice, from all its deltas or from one."""
        last, tokens = deltas[-1], [token for delta in deltas for token in delta.token_ids]
        n = self.request.n_alternatives
        choice = {
            "index": last.choice,
            **self._said(_text_of(deltas)),
            "logprobs": None if n is None else self._logprobs(tokens, n),
            "finish_reason": last.finish_reason,
        }
        if last.finish_reason is not None:
            choice["stop_reason"] = last.stop_reason
        return {**choice, "token_ids": tokens if self.request.return_token_ids else None}

    def _said(self, text: str) -> dict[str, Any]:
        """The part of a choice that has its text."""
        if self.request.stream:
            return {"delta": {"content": text}}
        return {"message": {"role": "assistant", "content": text}}

    def _logprobs(self, tokens: list[int], n: int) -> dict[str, Any]:
        """The logprobs of these tokens, with `n` alternatives."""
        return {"content": [_chat_logprobs(token, n) for token in tokens]}


class CompletionAnswer(Answer):
    """The answer to a prompt, or to several."""

    prefix = "cmpl"
    kinds = ("text_completion", "text_completion")

    def _opening(self) -> Iterator[bytes]:
        return iter(())

    def _said(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _logprobs(self, tokens: list[int], n: int) -> dict[str, Any]:
        ranked = [_ranked(token, n) for token in tokens]
        return {
            "token_logprobs": [each[0][1] for each in ranked],
            "tokens": [each[0][0] for each in ranked],
            "top_logprobs": [dict(each) for each in ranked],
        }


class EventAnswer(Answer):
    """Named events. Keeps its deltas: the last events sum them up."""

    @cached_property
    def _templates(self) -> list[tuple[bytes, bytes]]:
        return []

    @cached_property
    def _deltas(self) -> list[Delta]:
        return []

    def _usage(self, n_generated: int) -> dict[str, int]:
        n_prompt, total = self._n_prompt, self._n_prompt + n_generated
        return {"input_tokens": n_prompt, "output_tokens": n_generated, "total_tokens": total}


class MessagesAnswer(EventAnswer):
    """Anthropic's message, of one text block."""

    def _opening(self) -> Iterator[bytes]:
        yield _named("message_start", message=self._whole([]))
        yield _named("content_block_start", index=0, content_block={"type": "text", "text": ""})

    def _event(self, delta: Delta) -> bytes:
        self._deltas.append(delta)
        text = {"type": "text_delta", "text": delta.text}
        return _named("content_block_delta", index=0, delta=text)

    def _closing(self) -> Iterator[bytes]:
        whole = self._whole(self._deltas)
        stop = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
        yield _named("content_block_stop", index=0)
        yield _named("message_delta", delta=stop, usage=whole["usage"])
        yield _named("message_stop")

    def _whole(self, deltas: list[Delta]) -> dict[str, Any]:
        sequence = deltas[-1].stop_reason if deltas else None
        reasons = {"length": "max_tokens", "stop": "stop_sequence" if sequence else "end_turn"}
        return {
            "id": f"chatcmpl-{self.response_id}",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": _text_of(deltas)}] if deltas else [],
            "model": self.model,
            "stop_reason": reasons[deltas[-1].finish_reason or "stop"] if deltas else None,
            "stop_sequence": sequence,
            "usage": self._usage(len(deltas)),
        }


class ResponsesAnswer(EventAnswer):
    """A response whose output is one message. The message's id is random, as vLLM's are."""

    @cached_property
    def _item_id(self) -> str:
        return f"msg_{uuid.uuid4().hex}"

    def _opening(self) -> Iterator[bytes]:
        begun = self._response([], "in_progress")
        yield _named("response.created", sequence_number=0, response=begun)
        yield _named("response.in_progress", sequence_number=1, response=begun)
        item = {**self._item([]), "status": "in_progress"}
        yield _named("response.output_item.added", sequence_number=2, output_index=0, item=item)
        yield self._at("content_part.added", 3, part=_output_text(""))

    def _event(self, delta: Delta) -> bytes:
        self._deltas.append(delta)
        return self._at("output_text.delta", 3 + len(self._deltas), delta=delta.text, logprobs=[])

    def _closing(self) -> Iterator[bytes]:
        whole = self._whole(self._deltas)
        yield _named("response.completed", sequence_number=4 + len(self._deltas), response=whole)

    def _whole(self, deltas: list[Delta]) -> dict[str, Any]:
        cut = deltas[-1].finish_reason == "length"
        return self._response(deltas, "incomplete" if cut else "completed")

    def _at(self, name: str, number: int, **fields: Any) -> bytes:
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        return _named(f"response.{name}", sequence_number=number, **place, **fields)

    def _item(self, deltas: list[Delta]) -> dict[str, Any]:
        content = [_output_text(_text_of(deltas))] if deltas else []
        fixed = {"type": "message", "role": "assistant", "status": "completed"}
        return {"id": self._item_id, **fixed, "content": content}

    def _response(self, deltas: list[Delta], status: str) -> dict[str, Any]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.request.request_id or f"resp_{self.response_id}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "incomplete_details": cut,
            "model": self.model,
            "output": [self._item(deltas)] if deltas else [],
            "metadata": self.request.metadata,
            "background": False,
            "usage": self._usage(len(deltas)) if deltas else None,
        }


def _text_of(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def _part(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


def _data(value: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % _encode(value)


def _named(name: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **fields}))


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _ranked(token: int, n: int) -> list[tuple[str, float]]:
    """`n` tokens, at least one, and their logprobs, best first, `token` being the best."""
    best = -0.25 - token % 8 / 4
    return [(TOKENS[(token + rank) % len(TOKENS)], best - rank) for rank in range(max(1, n))]


@lru_cache(2048)
def _chat_logprobs(token: int, n: int) -> msgspec.Raw:
    """As JSON, made once for each token: an answer has many, and is made on the event loop."""
    ranked = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode())}
        for text, logprob in _ranked(token, n)
    ]
    return msgspec.Raw(_encode({**ranked[0], "top_logprobs": ranked[:n]}))


# --- routes ---


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    usage = {"prompt_tokens": 1, "total_tokens": 1, "completion_tokens": 0}
    data = [{"index": 0, **item}]
    return {"id": "simulated", "object": "list", "created": 0, "data": data, "usage": usage}


_SCORES = _list_of({"object": "score", "score": 0.5})
_RANKING = {
    "id": "simulated",
    "usage": {"prompt_tokens": 1, "total_tokens": 1},
    "results": [{"index": 0, "document": {"text": "[simulated]"}, "relevance_score": 0.5}],
}
_OPERATIONS = {each.engine_path: each.method for each in ACTIONS.values() if each.engine_path}
_CANNED: dict[str, dict[str, Any]] = {
    **{path: {} for path in _OPERATIONS},
    "/is_sleeping": {"is_sleeping": False},
    "/reset_prefix_cache": {"success": True},
    "/server_info": {"vllm_config": "simulated"},
    "/v1/embeddings": _list_of({"object": "embedding", "embedding": [0.6, 0.8]}),
    "/v2/embed": {
        "id": "simulated",
        "embeddings": {"float": [[0.6, 0.8]]},
        "texts": ["[simulated]"],
        "response_type": "embeddings_by_type",
    },
    "/pooling": _list_of({"object": "pooling", "data": [0.6, 0.8]}),
    "/classify": _list_of({"label": "LABEL_0", "probs": [0.5, 0.5], "num_classes": 2}),
    **dict.fromkeys(("/score", "/v1/score", "/generative_scoring"), _SCORES),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), _RANKING),
    "/tokenize": {"count": 1, "max_model_len": 1, "tokens": [1]},
    "/detokenize": {"prompt": "[simulated]"},
    "/v1/systemone": {
        "id": "simulated",
        "object": "structured_decision",
        "created": 0,
        "answers": {},
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "diagnostics": {},
    },
    "/v1/messages/count_tokens": {"input_tokens": 1},
    "/v1/audio/transcriptions": {"text": "[simulated]"},
    "/v1/audio/translations": {"text": "[simulated]"},
}
"""By path; those of endpoints get the model's name, too."""
_TEXT: dict[str, type[Answer]] = {
    "/v1/chat/completions": Answer,
    "/v1/chat/completions/batch": Answer,
    "/v1/completions": CompletionAnswer,
    "/invocations": Answer,
    "/v1/messages": MessagesAnswer,
    "/v1/responses": ResponsesAnswer,
}
_METHODS = {
    **_OPERATIONS,
    **dict.fromkeys(ENDPOINTS, "POST"),
    **dict.fromkeys(("/v1/models", "/health"), "GET"),
}


class Api:
    """The application of one engine."""

    def __init__(self, pool: Pool, engine: SimulatedEngine) -> None:
        self._root = pool.model or "simulated"
        self._names = pool.engine_names
        self._adapters: dict[str, str] = {}  # name -> path
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        try:
            answer = await self._answer(Request(scope, receive))
            if isinstance(answer, Answer):
                await self._generate(answer, receive, send)
                return
        except Refused as refused:
            answer = refused.response
        except EngineDead:
            answer = Response(_DEAD, 500, media_type="application/json")
        except (ClientDisconnect, Disconnected):
            return
        await answer(scope, receive, send)

    async def _generate(self, answer: Answer, receive: Receive, send: Send) -> None:
        async def abort_at_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._engine.abort(answer.generation)

        watch = asyncio.create_task(abort_at_disconnect(), name="simulated-watch")
        try:
            await (answer.send_stream(send) if answer.request.stream else answer.send_whole(send))
        finally:
            watch.cancel()
            self._engine.abort(answer.generation)

    async def _answer(self, request: Request) -> Answer | Response:
        """Raises Refused, and as SimulatedEngine.generate."""
        path, method = request.scope["path"], request.method
        if _METHODS.get(path) != method:
            raise Refused(f"{NO_ROUTE} {method} {path}", 404, "NotFoundError")
        if path in _OPERATIONS:
            await self._engine.operate()
        if path == "/health":
            return Response(status_code=503 if self._engine.dead else 200)
        if path == "/v1/models":
            return JSONResponse({"object": "list", "data": self._cards()})
        if path in (LOAD_ADAPTER.engine_path, UNLOAD_ADAPTER.engine_path):
            self._change_adapters(path, await _fields(request))
        if path in _CANNED:
            named = {"model": self._names[0]} if path in ENDPOINTS else {}
            return JSONResponse(named | _CANNED[path])
        wanted = _parse(await _fields(request))
        model, adapters = wanted.model or self._names[0], self._adapters
        if model not in (*self._names, *adapters):
            raise Refused(f"The model `{model}` does not exist.", 404, "NotFoundError")
        if ENDPOINTS[path].stream is None:
            wanted.stream = False
        made = CompletionAnswer if path == "/invocations" and wanted.prompt else _TEXT[path]
        if made is CompletionAnswer:
            wanted.max_tokens = wanted.max_tokens or 16
        generation = self._engine.generate(wanted)
        response_id = request.headers.get("x-request-id") or uuid.uuid4().hex[:16]
        return made(generation, response_id, model if model in adapters else self._names[0])

    def _change_adapters(self, path: str, options: dict[str, Any]) -> None:
        name = options["lora_name"]
        if path == UNLOAD_ADAPTER.engine_path:
            self._adapters.pop(name, None)
        elif options["lora_path"].startswith("missing"):
            raise Refused("The adapter can't be loaded.", 404, "NotFoundError")
        else:
            self._adapters[name] = options["lora_path"]

    def _cards(self) -> list[dict[str, Any]]:
        """The models, and the adapters that are loaded, as vLLM lists them."""
        fixed = {
            "object": "model",
            "created": int(time.time()),
            "owned_by": "simulated",
            "max_model_len": self._engine.capacity.max_model_len,
        }
        rows: list[tuple[str, str, str | None]] = [
            *((name, self._root, None) for name in self._names),
            *((name, path, self._names[0]) for name, path in self._adapters.items()),
        ]
        return [{"id": name, "root": root, "parent": base} | fixed for name, root, base in rows]


async def _fields(request: Request) -> dict[str, Any]:
    """The fields of a body. Raises Refused."""
    try:
        fields = json.loads(await request.body())
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise Refused("The simulated engine can't use this request: it is no JSON object.")
    return fields
