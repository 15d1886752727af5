"""Requests made of the API's description, right and wrong ones, the same in each run."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

_STRINGS = ["", "a", "hello", "\0", "é\U0001f600", "1", "null", "x" * 300]
_NUMBERS = [-1, 0, 1, 2, 7, 0.5, -0.5, 1e308, 2**31, 2**63, -(2**63) - 1]
_ANY: list[Any] = [None, True, "word", 3, -0.1, [], {}, [[1]], {"a": {"b": None}}]
_WRONG = 0.1
"""How often a value is none that the description allows."""
_MAX_DEPTH = 6


class RandomRequests:
    """Makes requests for each operation."""

    def __init__(self, described: dict[str, Any], model: str) -> None:
        """`described`: what `/openapi.json` says; `model`: the value of each `model`."""
        self._described = described
        self._model = model
        self._random = random.Random(7)

    def make(self, times: int) -> Iterator[dict[str, Any]]:
        """Yield the arguments of `httpx.request`, so many times for each operation."""
        for path, operations in self._described["paths"].items():
            for method, operation in operations.items():
                for _ in range(times):
                    yield self._request(method.upper(), path, operation)

    def _request(self, method: str, path: str, operation: dict[str, Any]) -> dict[str, Any]:
        parameters = operation.get("parameters", [])
        given = {
            each["name"]: str(self._value(each.get("schema", {})))
            for each in parameters
            if each["in"] == "query" and self._random.random() < 0.5
        }
        url = re.sub(r"\{\w+\}", lambda _: self._random.choice(["a", "job_1", "%00", "é"]), path)
        request: dict[str, Any] = {"method": method, "url": url, "params": given}
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
            body = self._value(content["schema"])
            if isinstance(body, dict) and "model" in body:
                body["model"] = self._model  # else nearly all would be 404
            if media_type == "multipart/form-data" and isinstance(body, dict):
                request["files"] = {
                    name: ("a", str(value)) if name == "file" else (None, str(value))
                    for name, value in body.items()
                }
            else:
                request["content"] = json.dumps(body)
                request["headers"] = {"content-type": media_type}
        return request

    def _value(self, schema: dict[str, Any], depth: int = 0) -> Any:
        chance = self._random
        if chance.random() < _WRONG or depth > _MAX_DEPTH:
            return chance.choice(_ANY)
        if reference := schema.get("$ref"):
            name = reference.rpartition("/")[2]
            return self._value(self._described["components"]["schemas"][name], depth)
        if choices := schema.get("anyOf") or schema.get("oneOf"):
            return self._value(chance.choice(choices), depth)
        if "const" in schema or "enum" in schema:
            return chance.choice(schema.get("enum") or [schema["const"]])
        match schema.get("type"):
            case "object":
                required = schema.get("required", ())
                return {
                    name: self._value(inside, depth + 1)
                    for name, inside in schema.get("properties", {}).items()
                    if name in required or chance.random() < 0.2
                }
            case "array":
                items = schema.get("items", {})
                return [self._value(items, depth + 1) for _ in range(chance.randrange(4))]
            case "string":
                return chance.choice(_STRINGS)
            case "integer":
                return chance.choice([each for each in _NUMBERS if isinstance(each, int)])
            case "number":
                return chance.choice(_NUMBERS)
            case "boolean":
                return chance.random() < 0.5
            case "null":
                return None
        return chance.choice(_ANY)
