"""The inputs of the batches of a run, and the right result of each of their lines."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from load_tests.oracle.request_classes import CLASSES, Mode, Request, RequestClass, make_request
from load_tests.oracle.undisturbed import Undisturbed
from load_tests.systems.engine import CHAT_PATH

_SHORT = RequestClass(
    "short", CHAT_PATH, {"ignore_eos": True}, lambda rng: {"max_tokens": rng.randint(1, 24)}
)
_REFUSED = RequestClass("refused", CHAT_PATH, {"max_tokens": -1})
_OTHERS = [each for each in CLASSES if each.path == CHAT_PATH and "whole" in each.name]
_ENDLESS = RequestClass("endless", CHAT_PATH, {"ignore_eos": True, "max_tokens": 8000})
_SHARES = {"short": 0.9, "refused": 0.02}
"""Of the lines; the others are of all other classes."""
_AT_ONCE = 200

Json = Mapping[str, Any]


@dataclass(slots=True)
class BatchInput:
    """One input."""

    data: bytes
    """Its lines."""
    answers: Mapping[str, Json]
    """The right answer to each line that is not refused, in comparable form, by its custom id."""
    refused: frozenset[str]
    """The custom ids of those that are."""
    endless: frozenset[str]
    """Those of lines that do not end before their batch is cut off."""

    @property
    def ids(self) -> set[str]:
        """The custom ids of all lines."""
        return {*self.answers, *self.refused, *self.endless}


def comparable(answer: Json) -> Json:
    """Return an answer without what differs between two runs of one request."""
    return {name: value for name, value in answer.items() if name not in ("id", "created")}


async def make_input(
    undisturbed: Undisturbed, n_lines: int, seed: str, n_endless: int = 0
) -> BatchInput:
    """Draw the lines from a seed, and compute their answers. The last lines are endless."""
    rng = random.Random(seed)
    classes = [_SHORT, _REFUSED, *_OTHERS]
    rest = (1 - sum(_SHARES.values())) / len(_OTHERS)
    weights = [_SHARES.get(each.name, rest) for each in classes]
    drawn = rng.choices(classes, weights, k=n_lines - n_endless)
    requests = {}
    for n, chosen in enumerate([*drawn, *[_ENDLESS] * n_endless]):
        custom_id = f"{seed}-{n}"
        requests[custom_id] = make_request(chosen, rng, custom_id, Mode.CALL)
    lines = [
        {"custom_id": custom_id, "method": "POST", "url": CHAT_PATH, "body": request.body}
        for custom_id, request in requests.items()
    ]
    data = b"".join([json.dumps(line).encode() + b"\n" for line in lines])
    by_class: dict[str, set[str]] = {"refused": set(), "endless": set()}
    for name, request in requests.items():
        by_class.setdefault(request.class_name, set()).add(name)
    refused, endless = frozenset(by_class.pop("refused")), frozenset(by_class.pop("endless"))
    answered = {name: requests[name] for names in by_class.values() for name in names}
    return BatchInput(data, await _answers(undisturbed, answered), refused, endless)


async def _answers(undisturbed: Undisturbed, requests: Mapping[str, Request]) -> dict[str, Json]:
    names, answers = list(requests), {}
    for at in range(0, len(names), _AT_ONCE):
        some = names[at : at + _AT_ONCE]
        found = await asyncio.gather(*(undisturbed.expected(requests[name]) for name in some))
        for name, each in zip(some, found, strict=True):
            answers[name] = comparable(json.loads(each.answer.body))
    return answers
