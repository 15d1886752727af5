"""The classes of requests that are continued after the loss of a worker, and how their tests, and
`python -m load_tests continuation`, cut and compare them.

Each class runs undisturbed once. Then its journal is cut after the first, a random, the middle, the
last but one and the last delta, and the engine gets the request again with that past, all of them
at once and beside a new request. What comes out is compared with the undisturbed answer.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.harness.asgi_client import Recorder, Reply, call
from worker.engines.interface import JOURNAL, Engine, Generated, Past

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BATCH = "/v1/chat/completions/batch"
STORY = [{"role": "user", "content": "Tell me a story about a queue."}]
WEATHER = [{"role": "user", "content": "What's the weather in Paris?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
AS_JSON = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
}
THINKS: dict[str, Any] = {"max_tokens": 72}
"""The reasoning ends with the first comma."""
GREEDY = {"temperature": 0}
SEEDED = {"temperature": 1.5, "seed": 11}
LONG = {"max_tokens": 16, "ignore_eos": True}
PENALTIES = {"presence_penalty": 1.5, "frequency_penalty": 1.0, "repetition_penalty": 1.2}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
EVERY_USAGE = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


@dataclass(frozen=True)
class RequestClass:
    """One row of the table: a kind of request, with one request of it."""

    name: str
    path: str
    body: dict[str, Any]
    exact: bool = True
    """Whether two undisturbed runs are the same."""
    seam_stop: bool = False
    """The stop string is taken from the answer, so that it lies across the middle."""
    matches: str = ""
    """What the text of each choice must match (not exact ones), as a regular expression."""
    reasons: bool = False
    """It needs an engine with a reasoning parser."""


def chat(name: str, *fields: dict[str, Any], **more: Any) -> RequestClass:
    """A class of chats."""
    body = {"messages": STORY, **LONG, **GREEDY}
    options = {key: more.pop(key) for key in ("exact", "seam_stop", "matches") if key in more}
    for each in (*fields, more):
        body |= each
    return RequestClass(name, CHAT, body, reasons=name.startswith("reasoning"), **options)


def complete(name: str, *fields: dict[str, Any], **more: Any) -> RequestClass:
    """A class of completions."""
    made = chat(name, *fields, **more)
    body = {"prompt": "Once upon a time", **made.body}
    del body["messages"]
    return replace(made, path=COMPLETIONS, body=body)


def structured(**kind: Any) -> dict[str, Any]:
    """A grammar of vLLM's own field."""
    own = {"structured_outputs": kind} if kind else {}
    return {**own, "ignore_eos": False, "max_tokens": 48}


CLASSES = (
    chat("greedy, streamed", STREAM),
    chat("greedy, not streamed"),
    chat("ends by itself", STREAM, max_tokens=60, ignore_eos=False),
    chat("max_tokens reached", STREAM, max_tokens=5),
    chat("sampled with a seed", STREAM, SEEDED),
    chat("seed with top_p, top_k, min_p", STREAM, SEEDED, top_p=0.9, top_k=50, min_p=0.01),
    chat("sampled without a seed", STREAM, temperature=1.0, exact=False),
    chat("penalties, greedy", STREAM, PENALTIES),
    chat("penalties, seeded", STREAM, PENALTIES, SEEDED),
    chat("logit_bias, bad_words", STREAM, logit_bias={"300": 3, "301": -9}, bad_words=[" the"]),
    chat(
        "min_tokens",
        STREAM,
        SEEDED,
        min_tokens=10,
        ignore_eos=False,
        stop_token_ids=[*range(300, 420)],
    ),
    chat("stop_token_ids", STREAM, SEEDED, stop_token_ids=[*range(260, 275)], max_tokens=40),
    chat("stop string over the seam", STREAM, seam_stop=True),
    chat(
        "stop string over the seam, included",
        STREAM,
        SEEDED,
        seam_stop=True,
        include_stop_str_in_output=True,
    ),
    chat("stop strings with min_tokens", STREAM, SEEDED, min_tokens=8, stop=["e", "the", "a"]),
    chat("logprobs, streamed", STREAM, SEEDED, logprobs=True, top_logprobs=2),
    chat("logprobs, not streamed", SEEDED, logprobs=True, top_logprobs=2),
    chat("prompt_logprobs", prompt_logprobs=1, logprobs=True),
    chat("n = 3, streamed", STREAM, SEEDED, n=3, stop_token_ids=[*range(260, 290)]),
    chat("n = 3, not streamed", SEEDED, n=3, logprobs=True),
    chat("usage in every chunk", EVERY_USAGE),
    chat("return_token_ids", STREAM, return_token_ids=True),
    chat("stream_interval", STREAM, stream_interval=4),
    chat(
        "JSON schema",
        STREAM,
        SEEDED,
        structured(),
        AS_JSON,
    ),
    chat("JSON object", SEEDED, structured(), response_format={"type": "json_object"}),
    chat("regex", STREAM, SEEDED, structured(regex="[a-z]{5} [0-9]{3} [A-F]{4}")),
    chat(
        "regex without a seed",
        STREAM,
        structured(regex="[a-z]{5} [0-9]{3} [A-F]{4}"),
        temperature=1.0,
        exact=False,
        matches="[a-z]{5} [0-9]{3} [A-F]{4}",
    ),
    chat("grammar", STREAM, SEEDED, structured(grammar='root ::= ("ab" | "cd" | "e")+ "."')),
    chat("choice", structured(choice=["a long first choice", "a long second one"])),
    chat("regex with penalties", STREAM, SEEDED, PENALTIES, structured(regex="([a-z]{3,6} ){4}")),
    chat("incomplete UTF-8 at the seam", STREAM, SEEDED, structured(regex="[äöü€ß]{9}")),
    chat("tools, auto", STREAM, messages=WEATHER, tools=[TOOL], max_tokens=60, ignore_eos=False),
    chat(
        "tools, auto, not streamed", messages=WEATHER, tools=[TOOL], max_tokens=60, ignore_eos=False
    ),
    chat("tools, required", STREAM, structured(), tools=[TOOL], tool_choice="required"),
    chat(
        "tools, named",
        STREAM,
        structured(),
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
    ),
    chat("reasoning", STREAM, SEEDED, THINKS),
    chat("reasoning, not streamed", SEEDED, THINKS),
    chat("reasoning, then JSON schema", STREAM, SEEDED, structured(), AS_JSON, THINKS),
    chat(
        "reasoning, then a regex, greedy",
        STREAM,
        structured(regex="[0-9]{9}"),
        THINKS,
    ),
    complete("completions, streamed", STREAM),
    complete("completions, not streamed", SEEDED),
    complete("completions, echo and logprobs", STREAM, SEEDED, echo=True, logprobs=2),
    complete("completions, echo and logprobs, not streamed", SEEDED, echo=True, logprobs=2),
    complete("completions, prompt_logprobs", SEEDED, prompt_logprobs=2),
    complete(
        "completions, several prompts, n = 2", STREAM, SEEDED, prompt=["Once", "A queue"], n=2
    ),
    complete("completions, several prompts, not streamed", SEEDED, prompt=["Once", "A queue"], n=2),
    complete("completions, usage in every chunk", EVERY_USAGE, prompt=["Once", "A queue"]),
    complete("completions, return_token_ids", STREAM, return_token_ids=True, echo=True),
    replace(chat("batch of conversations", SEEDED, messages=[STORY, WEATHER]), path=BATCH),
)


@dataclass
class Known:
    """What a job's log holds of one engine call."""

    prompt_logprobs: Sequence[Any] | None = None
    deltas: list[Generated] = field(default_factory=list)


class LogRecorder(Recorder):
    """A journal with a past, which also records the order of deltas and chunks."""

    def __init__(self, past: dict[int, Known] | None = None) -> None:
        super().__init__()
        self.log: list[tuple[int, Generated]] = []
        self.chunks_before: list[int] = []
        """How many chunks had been sent when each delta came."""
        self.chunks = 0
        self.prompt_logprobs: dict[int, Any] = {}
        self.refused = ""
        self.stays = False
        self.ways: list[tuple[str, int]] = []
        self._past = past or {}

    def past(self, call: int) -> Past | None:
        known = self._past.get(call)
        return Past(known.deltas, known.prompt_logprobs) if known else None

    def refuse_past(self, reason: str) -> None:
        self.refused = reason

    def continued(self, how: str, decoded_again: int) -> None:
        self.ways.append((how, decoded_again))

    def keep_here(self) -> None:
        self.stays = True

    def prompt(self, call: int, n_tokens: int, logprobs: Any = None) -> None:
        super().prompt(call, n_tokens, logprobs)
        self.prompt_logprobs[call] = logprobs

    def delta(
        self, call: int, index: int, token_ids: Sequence[int], text: str, logprobs: Any = None
    ) -> None:
        super().delta(call, index, token_ids, text)
        self.log.append((call, Generated(index, tuple(token_ids), text, logprobs)))
        self.chunks_before.append(self.chunks)

    def cut(self, k: int) -> dict[int, Known]:
        """The log up to the first `k` deltas."""
        past = {call: Known(logprobs) for call, logprobs in self.prompt_logprobs.items()}
        for call_number, delta in self.log[:k]:
            past[call_number].deltas.append(delta)
        return past


async def run(
    engine: Engine,
    path: str,
    body: Any,
    journal: LogRecorder,
    disconnect: asyncio.Event | None = None,
) -> Reply:
    """Call the engine as a worker does."""
    JOURNAL.set(journal)

    def count(data: bytes) -> None:
        journal.chunks += 1

    headers = {"x-request-id": "job-1"}
    return await call(engine, "POST", path, body, headers, disconnect, count)


def chunks_by_choice(reply: Reply) -> dict[Any, list[Any]]:
    """The chunks of a stream by the index of their choice, without what differs by chance."""
    found: dict[Any, list[Any]] = {}
    for data in reply.data():
        chunk: Any = data if data == "[DONE]" else _normal(json.loads(data))
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        found.setdefault(choices[0]["index"] if choices else None, []).append(chunk)
    return found


def _normal(value: Any) -> Any:
    """Without times and the random ids of tool calls."""
    if isinstance(value, dict):
        return {k: _normal(v) for k, v in value.items() if k != "created"}
    if isinstance(value, list):
        return [_normal(v) for v in value]
    if isinstance(value, str):
        return re.sub(r"^(chatcmpl-tool-|call_)\w+$", r"\1", value)
    return value


def summary(reply: Reply) -> Any:
    """All that an answer has, whatever the bounds of its chunks."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return _normal(reply.json())
    whole: dict[Any, Any] = {}
    for index, chunks in chunks_by_choice(reply).items():
        if index is None:
            whole["end"] = chunks
            continue
        mine = whole[index] = {}
        for chunk in chunks:
            choice = dict(chunk["choices"][0])
            # The engine joins deltas when it is ahead of its reader, also with the end.
            delta = choice.pop("delta", {})
            for name, value in {**choice, **delta, "usage": chunk.get("usage")}.items():
                mine[name] = _joined(mine.get(name), value)
    return whole


def same(a: Any, b: Any) -> bool:
    """Whether two summaries are equal; a logprob's last digits depend on its neighbours' number."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, abs_tol=1e-3)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def _joined(so_far: Any, value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], dict) and "function" in value[0]:
        return _joined_calls(so_far or [], value)
    if value is None or so_far is None:
        return so_far if value is None else value
    if isinstance(value, str) and isinstance(so_far, str):
        return so_far if value == so_far == "assistant" else so_far + value
    if isinstance(value, list):
        return so_far + value
    if isinstance(value, dict) and ("tokens" in value or "content" in value):
        return {k: _joined(so_far.get(k), v) for k, v in value.items()}
    return value


def _joined_calls(so_far: list[Any], pieces: list[Any]) -> list[Any]:
    """Tool calls with these pieces of their arguments added: how they are cut differs by chance."""
    calls = {call["index"]: call for call in so_far}
    for piece in pieces:
        call = calls.setdefault(piece["index"], {"function": {}})
        function = {k: _joined(call["function"].get(k), v) for k, v in piece["function"].items()}
        known = {k: v for k, v in piece.items() if v is not None}
        calls[piece["index"]] = call | known | {"function": call["function"] | function}
    return list(calls.values())


async def answer(
    engine: Engine, of: RequestClass, body: Any, past: Any = None
) -> tuple[Reply, LogRecorder]:
    """An answer and its journal; the call has a task of its own, as a worker's."""
    journal = LogRecorder(past)
    reply = await asyncio.create_task(run(engine, of.path, body, journal))
    assert reply.status == 200, reply.body
    return reply, journal


async def undisturbed(engine: Engine, of: RequestClass) -> tuple[Any, Reply, LogRecorder]:
    """The request's body, its answer and its journal."""
    body = dict(of.body)
    if of.seam_stop:
        _, free = await answer(engine, of, body)
        texts = [delta.text for _, delta in free.log]
        seam = len("".join(texts[: len(texts) // 2]))
        body["stop"] = "".join(texts)[seam - 2 : seam + 2]
    return body, *await answer(engine, of, body)


@dataclass(frozen=True)
class Continued:
    """How a class was continued behind its first `cut` deltas."""

    cut: int
    ways: list[tuple[str, int]]
    """See `Journal.continued`."""
    past: int
    """Tokens."""
    problem: str
    """What differs from the undisturbed answer; empty: nothing."""


async def continue_at_each_cut(engine: Engine, of: RequestClass) -> tuple[Reply, list[Continued]]:
    """The undisturbed answer, and how it was continued."""
    body, whole, journal = await undisturbed(engine, of)
    ks = _cuts(journal, of)
    calls = [answer(engine, of, body, journal.cut(k)) for k in ks]
    *answers, _ = await asyncio.gather(*calls, answer(engine, of, body))
    return whole, [
        Continued(
            k,
            new.ways,
            sum(map(len, tokens(journal.log[:k]).values())),
            new.refused or _problem(of, k, (whole, journal), (again, new)),
        )
        for k, (again, new) in zip(ks, answers, strict=True)
    ]


def _cuts(journal: LogRecorder, of: RequestClass) -> list[int]:
    n = len(journal.log)
    some = {1, random.Random(of.name).randint(1, n), n // 2, n - 1, n}
    if "UTF-8" in of.name:
        texts = [delta.text for _, delta in journal.log]
        assert "" in texts[:-1], texts
        some |= {k + 1 for k, text in enumerate(texts) if not text}
    return sorted(some - {0})


def _problem(
    of: RequestClass, k: int, before: tuple[Reply, LogRecorder], after: tuple[Reply, LogRecorder]
) -> str:
    (whole, journal), (again, new) = before, after
    if new.prompts != journal.prompts:
        return "another prompt"
    if k == len(journal.log) and new.log:
        return "tokens behind the end"
    if of.body.get("stream") and not _has_chunks(of, k, before, again):
        return "a chunk that the client has is not made again"
    if not of.exact:
        n_tokens = sum(map(len, tokens(journal.log[:k] + new.log).values()))
        return "" if _is_right(of, again, n_tokens) else "not as asked for"
    if tokens(journal.log[:k] + new.log) != tokens(journal.log):
        return "other tokens"
    return "" if same(summary(again), summary(whole)) else "another answer"


def tokens(log: list[Any]) -> dict[Any, list[int]]:
    """The tokens of a log by call and choice."""
    found: dict[Any, list[int]] = {}
    for call_number, delta in log:
        found.setdefault((call_number, delta.choice), []).extend(delta.token_ids)
    return found


def _has_chunks(of: RequestClass, k: int, before: tuple[Reply, LogRecorder], again: Reply) -> bool:
    """Whether the chunks that a client had when the `k`-th delta was the last are made again, one
    by one the same."""
    whole, journal = before
    n = journal.chunks_before[k] if k < len(journal.log) else journal.chunks
    known = Reply(200, whole.headers, [f"data: {data}\n\n".encode() for data in whole.data()[:n]])
    made = chunks_by_choice(again)
    return not n or all(
        made.get(index, [])[: len(chunks)] == chunks
        for index, chunks in chunks_by_choice(known).items()
        if of.exact or index is not None
    )


def _is_right(of: RequestClass, reply: Reply, n_tokens: int) -> bool:
    (choice,) = (value for index, value in summary(reply).items() if index == 0)
    (usage,) = (chunk["usage"] for chunk in chunks_by_choice(reply)[None] if chunk != "[DONE]")
    return (
        re.fullmatch(of.matches or "(?s).+", choice["content"]) is not None
        and choice["finish_reason"] in ("stop", "length")
        and usage["completion_tokens"] == n_tokens
        and (choice["finish_reason"] == "stop" or n_tokens == of.body["max_tokens"])
    )
