"""Readiness: what is missing, ended tasks, and who is told of models and workers."""

from __future__ import annotations

import hashlib
import json
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.http.auth import Authenticator
from gateway.http.known_keys import KnownKeys
from gateway.ops import probes as health
from gateway.ops.readiness import Readiness, Status, readiness
from shared.fleet.registry import ModelInfo
from shared.platform.metrics.gateway import GatewayMetrics

OK = {"redis": "", "tasks": ""}


@pytest.mark.parametrize(
    ("checks", "models", "status", "http_status", "missing"),
    [
        (OK, {"m": ""}, Status.READY, 200, []),
        (
            OK,
            {"m": "", "n": "no worker runs"},
            Status.READY,
            200,
            ["model n: no worker runs"],
        ),
        (OK, {"m": "no worker runs"}, Status.NO_WORKER, 200, ["model m: no worker runs"]),
        (OK, {}, Status.NO_WORKER, 200, ["no worker has registered a model yet"]),
        (OK | {"redis": "full"}, {"m": ""}, Status.NOT_READY, 503, ["redis: full"]),
        (
            OK | {"redis": "full", "tasks": "relay has ended"},
            {"m": "no worker runs"},
            Status.NOT_READY,
            503,
            ["redis: full", "tasks: relay has ended", "model m: no worker runs"],
        ),
    ],
)
def test_the_status_and_what_is_missing(
    checks: dict[str, str],
    models: dict[str, str],
    status: Status,
    http_status: int,
    missing: list[str],
) -> None:
    found = Readiness(checks, models)
    assert (found.status, found.http_status, found.missing) == (status, http_status, missing)


def probe(app: Authenticator, address: str, key: str = "") -> Any:
    """A request for /readyz."""
    headers = [(b"authorization", b"Bearer " + key.encode())] if key else []
    state = SimpleNamespace(authenticator=app)
    scope = {"headers": headers, "client": (address, 1)}
    return SimpleNamespace(app=SimpleNamespace(state=state), scope=scope)


WITHOUT_KEYS = Authenticator(KnownKeys({}))
REQUEST = probe(WITHOUT_KEYS, "127.0.0.1")


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class Redis:
    """A server that accepts writes until it fails."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def set(self, *args: object, **options: object) -> None:
        if self.error is not None:
            raise self.error

    async def run_once(self, *arguments: object) -> None:
        """Call a script."""
        await self.set()


@pytest.fixture
def gateway() -> Any:
    """A gateway in good order, with one model that a worker serves."""
    redis = Redis()
    fleet = SimpleNamespace(
        models={"m": ModelInfo("m", "pool", {})}, workers=[], problem="", reason=""
    )
    fleet.wait_reason = lambda pool: fleet.reason
    return SimpleNamespace(
        id="gw",
        queue=SimpleNamespace(
            shards=2,
            servers=SimpleNamespace(primary=redis, groups=[range(2)]),
            scripts=lambda shard: redis,
        ),
        relay=SimpleNamespace(is_subscribed=lambda shard: True),
        health=SimpleNamespace(eviction="", format=""),
        tasks=SimpleNamespace(ended={}),
        fleet=fleet,
        metrics=GatewayMetrics(CollectorRegistry()),
    )


async def test_an_ended_task_is_named_and_only_a_restart_helps(gateway: Any) -> None:
    gateway.tasks.ended["relay"] = "ValueError('broken')"
    found = await readiness(gateway)
    assert found.missing == ["tasks: background task relay has ended: ValueError('broken')"]
    assert (await health.readyz(REQUEST, gateway)).status_code == 503
    assert (await health.health(gateway)).status_code == 503
    answer = await health.healthz(gateway)
    assert answer.status_code == 503
    assert b"relay" in bytes(answer.body)


@pytest.mark.parametrize(
    ("keys", "address", "key", "sees_all"),
    [
        (False, "127.0.0.1", "", True),
        (False, "::1", "", True),
        (False, "172.18.0.1", "", False),  # through a port that a container publishes
        (True, "127.0.0.1", "", False),  # a proxy may be on this machine
        (True, "127.0.0.1", "wrong", False),
        (True, "10.0.0.9", "sk-tenant", False),
        (True, "10.0.0.9", "sk-operator", True),
    ],
)
async def test_who_is_told_models_and_workers(
    gateway: Any, keys: bool, address: str, key: str, sees_all: bool
) -> None:
    tenants = {digest("sk-tenant"): "t", digest("sk-operator"): "o"} if keys else {}
    admins = frozenset({digest("sk-operator")}) if keys else frozenset()
    app = Authenticator(KnownKeys(tenants, admins))
    answer = await health.readyz(probe(app, address, key), gateway)
    assert answer.status_code == 200
    body = json.loads(bytes(answer.body))
    assert body["status"] == "ready"
    assert set(body) == (
        {"status", "missing", "checks", "models", "workers"} if sees_all else {"status"}
    )
