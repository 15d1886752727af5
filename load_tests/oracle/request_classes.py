"""The requests of clients: every class that the simulated engine serves, drawn from a seed.

A class is a shape of request; a request of it has a prompt of its own, so that no two requests have
the same answer. How a client reads the answer is its mode.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from load_tests.systems.engine import CHAT_PATH, MODEL

COMPLETIONS_PATH = "/v1/completions"
_TOKENS = (16, 64)
"""Fewest and most tokens of an answer that does not end by itself."""

Json = dict[str, Any]


class Mode(StrEnum):
    """How a client sends a request and reads its answer."""

    CALL = "call"
    """The endpoint itself."""
    POLLED = "polled"
    """POST /jobs, then GET /jobs/<id> until it has ended."""
    EVENTS = "events"
    """POST /jobs, then its events; taken up again by Last-Event-ID when the connection breaks."""
    RESUMED = "resumed"
    """As EVENTS, and the client itself closes the connection now and then."""
    LEFT = "left"
    """The endpoint itself; the client closes the connection long before the end."""
    CANCELLED = "cancelled"
    """POST /jobs, then POST /jobs/<id>/cancel."""


@dataclass(frozen=True, slots=True)
class RequestClass:
    """A shape of request."""

    name: str
    path: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every request of this class."""
    drawn: Callable[[random.Random], Json] = lambda rng: {}
    """Fields that differ from request to request."""
    prompts: int = 1
    """Prompts of a completions request."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    tag: str
    """Part of its prompt only."""
    class_name: str
    path: str
    body: Json
    mode: Mode

    @property
    def stream(self) -> bool:
        """Whether the endpoint streams the answer."""
        return bool(self.body.get("stream"))


def _length(rng: random.Random) -> Json:
    return {"max_tokens": rng.randint(*_TOKENS), "ignore_eos": True}


def _seeded(rng: random.Random) -> Json:
    return {"max_tokens": 64, "seed": rng.randrange(1 << 30)}


def _stopped(rng: random.Random) -> Json:
    return {
        **_length(rng),
        "stop": [rng.choice((" wave tide", " lease", "r t", " ship s")), " or but so"],
        "include_stop_str_in_output": rng.random() < 0.5,
    }


_STREAM = {"stream": True}
_IDS = {"stream": True, "return_token_ids": True}
_TOP = {"logprobs": True, "top_logprobs": 2}
_ECHO = {"echo": True, "logprobs": 1}
_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
_RUNNING_USAGE = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
CLASSES = (
    RequestClass("chat", CHAT_PATH, _STREAM, _length),
    RequestClass("chat whole", CHAT_PATH, {}, _length),
    RequestClass("chat own end", CHAT_PATH, {**_STREAM, "max_tokens": 80}),
    RequestClass("chat seed", CHAT_PATH, _STREAM, _seeded),
    RequestClass("chat n", CHAT_PATH, {**_USAGE, "n": 3}, _length),
    RequestClass("chat n whole", CHAT_PATH, {"n": 2}, _seeded),
    RequestClass("chat logprobs", CHAT_PATH, {**_STREAM, **_TOP}, _length),
    RequestClass("chat logprobs whole", CHAT_PATH, _TOP, _length),
    RequestClass("chat stop", CHAT_PATH, _STREAM, _stopped),
    RequestClass("chat stop whole", CHAT_PATH, {}, _stopped),
    RequestClass("chat usage", CHAT_PATH, _USAGE, _length),
    RequestClass("chat running usage", CHAT_PATH, _RUNNING_USAGE, _length),
    RequestClass("chat token ids", CHAT_PATH, _IDS, _length),
    RequestClass("chat min tokens", CHAT_PATH, {**_STREAM, "min_tokens": 40, "max_tokens": 90}),
    RequestClass("chat service tier", CHAT_PATH, {**_STREAM, "service_tier": "auto"}, _length),
    RequestClass("completions", COMPLETIONS_PATH, _STREAM, _length),
    RequestClass("completions whole", COMPLETIONS_PATH, {}, _length),
    RequestClass("completions n", COMPLETIONS_PATH, {**_STREAM, "n": 2}, _seeded),
    RequestClass("completions prompts", COMPLETIONS_PATH, _USAGE, _length, prompts=3),
    RequestClass("completions prompts whole", COMPLETIONS_PATH, {"n": 2}, _seeded, prompts=2),
    RequestClass("completions logprobs", COMPLETIONS_PATH, {**_STREAM, "logprobs": 2}, _length),
    RequestClass("completions logprobs whole", COMPLETIONS_PATH, {"logprobs": 1}, _length),
    RequestClass("completions stop", COMPLETIONS_PATH, _STREAM, _stopped),
    RequestClass("completions echo", COMPLETIONS_PATH, {**_STREAM, "echo": True}, _length),
    RequestClass("completions echo whole", COMPLETIONS_PATH, _ECHO, _length),
    RequestClass("completions token ids", COMPLETIONS_PATH, _IDS, _length),
    RequestClass("completions min tokens", COMPLETIONS_PATH, {"min_tokens": 40, "max_tokens": 90}),
)  # fmt: skip
"""All classes. Those that the engine refuses are left out of a run (undisturbed.py)."""

_LONG: Json = {"max_tokens": 200, "ignore_eos": True}
"""Long enough for kills in the middle; the demo model needs some milliseconds for a token."""
_GREEDY: Json = {**_LONG, "temperature": 0}
_SAMPLED: Json = {**_LONG, "temperature": 1.2}
_PENALTIES: Json = {"presence_penalty": 1.0, "repetition_penalty": 1.2}


def _seed(rng: random.Random) -> Json:
    return {"seed": rng.randrange(1 << 30)}


VLLM_CLASSES = (
    RequestClass("chat greedy", CHAT_PATH, {**_STREAM, **_GREEDY}),
    RequestClass("chat greedy whole", CHAT_PATH, _GREEDY),
    RequestClass("chat greedy token ids", CHAT_PATH, {**_IDS, **_GREEDY}),
    RequestClass("chat seed token ids", CHAT_PATH, {**_IDS, **_SAMPLED}, _seed),
    RequestClass("chat seed usage", CHAT_PATH, {**_USAGE, **_SAMPLED}, _seed),
    RequestClass("chat seed whole", CHAT_PATH, _SAMPLED, _seed),
    RequestClass("chat penalties", CHAT_PATH, {**_IDS, **_SAMPLED, **_PENALTIES}, _seed),
    RequestClass("chat n", CHAT_PATH, {**_IDS, **_SAMPLED, "n": 2}, _seed),
    RequestClass("chat logprobs", CHAT_PATH, {**_STREAM, **_SAMPLED, **_TOP}, _seed),
    RequestClass("completions greedy", COMPLETIONS_PATH, {**_STREAM, **_GREEDY}),
    RequestClass("completions token ids", COMPLETIONS_PATH, {**_IDS, **_SAMPLED}, _seed),
    RequestClass("completions prompts", COMPLETIONS_PATH, {**_IDS, **_SAMPLED}, _seed, prompts=2),
    RequestClass("completions whole", COMPLETIONS_PATH, _SAMPLED, _seed),
)  # fmt: skip
"""Classes of which two undisturbed runs on real vLLM are the same."""
MODES: Mapping[Mode, int] = {Mode.CALL: 6, Mode.POLLED: 1, Mode.EVENTS: 1, Mode.RESUMED: 1}
"""How clients that read their whole answer do it, with weights."""


def chat(tokens: int, *, stream: bool = True) -> RequestClass:
    """Return a class of chat completions with exactly this many tokens."""
    fields = {"stream": stream, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return RequestClass("chat" if stream else "chat whole", CHAT_PATH, fields)


def draw_mode(rng: random.Random, modes: Mapping[Mode, int]) -> Mode:
    """Draw how the client reads the answer."""
    return rng.choices(list(modes), list(modes.values()))[0]


def make_request(chosen: RequestClass, rng: random.Random, tag: str, mode: Mode) -> Request:
    """Make a request of a class."""
    prompts = [f"Say something. {tag} {n}" for n in range(chosen.prompts)]
    body: Json = {"model": MODEL, **chosen.fields, **chosen.drawn(rng)}
    if chosen.path == CHAT_PATH:
        body["messages"] = [{"role": "user", "content": prompts[0]}]
    else:
        body["prompt"] = prompts if len(prompts) > 1 else prompts[0]
    return Request(tag, chosen.name, chosen.path, body, mode)
