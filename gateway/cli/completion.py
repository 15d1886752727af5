"""What the shell proposes for an argument, from the gateway; nothing if it does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from gateway.cli.exit_codes import CommandError
from gateway.cli.gateway_client import GatewayClient, address

_TIMEOUT_S = 1.0


def job_ids(incomplete: str) -> list[str]:
    """The newest jobs."""
    return _found("/jobs?limit=50", incomplete, lambda body: (job["id"] for job in body["data"]))


def batch_ids(incomplete: str) -> list[str]:
    """The newest batches."""
    return _found("/v1/batches", incomplete, lambda body: (row["id"] for row in body["data"]))


def webhook_ids(incomplete: str) -> list[str]:
    """The webhook endpoints."""
    return _found(
        "/v1/webhook_endpoints", incomplete, lambda body: (row["id"] for row in body["data"])
    )


def key_ids(incomplete: str) -> list[str]:
    """The newest API keys."""
    return _found("/admin/keys", incomplete, lambda body: (row["id"] for row in body["data"]))


def event_types(incomplete: str) -> list[str]:
    """The events that webhook endpoints may subscribe to."""
    return _found("/v1/webhook_event_types", incomplete, lambda body: iter(body["data"]))


def model_names(incomplete: str) -> list[str]:
    """The models of the fleet."""
    return _found("/v1/models", incomplete, lambda body: (row["id"] for row in body["data"]))


def pool_names(incomplete: str) -> list[str]:
    """The pools of the fleet."""
    return _found("/admin/pools", incomplete, lambda body: (row["id"] for row in body["data"]))


def worker_ids(incomplete: str) -> list[str]:
    """The workers of all pools."""
    return _found("/admin/pools", incomplete, _workers)


def _workers(body: Any) -> Iterator[str]:
    for pool in body["data"]:
        yield from (worker["id"] for worker in pool["workers"])


def _found(path: str, incomplete: str, names: Callable[[Any], Iterator[str]]) -> list[str]:
    try:
        with closing(GatewayClient(address(), _TIMEOUT_S)) as client:
            return [name for name in names(client.get(path)) if name.startswith(incomplete)]
    except (CommandError, LookupError, TypeError):
        return []
