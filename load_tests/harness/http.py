"""Small synchronous HTTP calls to a server on this machine, for checks and metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import Any

from gateway.launcher import ports


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free, and that Linux gives to no other process."""
    return ports.free_port("127.0.0.1")


def get(port: int, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return status and body of a GET. Raises OSError, HTTPException."""
    return _call(port, 5, "GET", path, None, headers or {})


def post_json(port: int, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
    """Return status and body of a POST with a JSON body. Raises OSError, HTTPException."""
    fields = {"content-type": "application/json"}
    return _call(port, 60, "POST", path, json.dumps(body), fields)


def responds_ok(port: int, path: str) -> bool:
    """Return whether a GET is answered with status 200."""
    try:
        return get(port, path)[0] == 200
    except (OSError, HTTPException):
        return False


def metric_sum(text: str, name: str, label: str = "") -> float:
    """Sum all samples of a metric in Prometheus' text format.

    `label` is text that a sample's labels must contain, such as `use="busy"`.
    """
    total = 0.0
    for line in text.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] == name and label in sample:
            total += float(value)
    return total


def _call(port: int, timeout_s: float, *request: Any) -> tuple[int, str]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=timeout_s)) as connection:
        connection.request(*request)
        response = connection.getresponse()
        return response.status, response.read().decode()
