"""Compares two answers to one request: ids and times may differ, floats by rounding, and streams in
where their chunks begin.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from typing import Any

import httpx

from tests.vllm.stream_form import stream_form

_DIFFERS = {"id", "call_id", "item_id", "request_id", "created", "created_at"}
# How much of the prompt was cached depends on the requests before.
_DIFFERS |= {"input_tokens_details"}
_HEADERS = ("content-type", "metadata")
_ROUNDING = 1e-4
"""Batches of different composition round differently."""


def difference(ours: httpx.Response, theirs: httpx.Response) -> str:
    """What is different, in words; empty if nothing is."""
    if ours.status_code != theirs.status_code:
        return f"status {ours.status_code}, not {theirs.status_code}: {ours.text[:300]}"
    for name in _HEADERS:
        first, second = (answer.headers.get(name, "") for answer in (ours, theirs))
        if name == "metadata" and first and second:
            found = values_differ(json.loads(first), json.loads(second))
        else:
            found = "" if first == second else f"{first!r}, not {second!r}"
        if found:
            return f"header {name}: {found}"
    if ours.headers["content-type"].startswith("application/json"):
        return values_differ(ours.json(), theirs.json())
    if ours.headers["content-type"].startswith("text/event-stream"):
        return values_differ(stream_form(ours.text), stream_form(theirs.text))
    return values_differ(_floats(ours.content), _floats(theirs.content))


def values_differ(ours: Any, theirs: Any, rounding: float = _ROUNDING, path: str = "") -> str:
    """Where two JSON values differ, and how."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.keys() != theirs.keys():
            return f"{path}: the names {sorted(ours)}, not {sorted(theirs)}"
        pairs: Any = [(name, ours[name], theirs[name]) for name in ours if name not in _DIFFERS]
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return f"{path}: {len(ours)} items, not {len(theirs)}"
        pairs = list(zip(range(len(ours)), ours, theirs, strict=True))
    elif isinstance(ours, float) and isinstance(theirs, float):
        close = math.isclose(ours, theirs, rel_tol=rounding, abs_tol=rounding)
        return "" if close else f"{path}: {ours}, not {theirs}"
    elif isinstance(ours, str) and isinstance(theirs, str) and (numbers := _encoded(ours, theirs)):
        return values_differ(*numbers, rounding, path)
    else:
        return "" if ours == theirs else f"{path}: {ours!r}, not {theirs!r}"
    found = (
        values_differ(first, second, rounding, f"{path}.{name}") for name, first, second in pairs
    )
    return next(filter(None, found), "")


def _encoded(ours: str, theirs: str) -> tuple[list[float], list[float]] | None:
    """Two long texts as the numbers that they encode in base64; None if they do not."""
    if min(len(ours), len(theirs)) < 32 or ours == theirs:
        return None
    try:
        first, second = (_floats(base64.b64decode(each, validate=True)) for each in (ours, theirs))
    except (binascii.Error, struct.error):
        return None
    return first, second


def _floats(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))
