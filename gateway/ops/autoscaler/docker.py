"""The docker actuator: starts and drains workers in containers that exist already.

`docker compose create --scale worker=MAX` creates them. So only three calls of the Docker API are
needed, list, start and kill, and a proxy in front of its socket refuses all others: an intruder
here can stop workers, but can't create a container, with which he would be root on the machine.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from typing import Any

import httpx

from gateway.ops.autoscaler.reconcile import instance, reconcile
from shared.fleet.registry import WorkerInfo

log = logging.getLogger("flotilla.docker")

_TIMEOUT_S = 10.0
_ID_SHOWN = 12
"""Characters of a container's id in logs; Docker uses them as its host name too."""
_STARTABLE = frozenset({"created", "exited"})
_RUNS = frozenset({"running", "restarting"})


class Docker:
    """The containers of one Compose service."""

    def __init__(self, host: str, project: str, service: str) -> None:
        """`host` is the URL of the Docker API, without TLS: a proxy on a network of its own."""
        self._host = host.replace("tcp://", "http://", 1)
        self._project = project
        self._service = service

    async def reconcile(
        self, wanted: int, workers: Sequence[WorkerInfo], draining: Collection[str]
    ) -> list[str]:
        """Start or drain containers. `draining`: what the last call returned.

        Returns the names of those that drain and still run. Raises OSError or httpx.HTTPError.
        """
        by_host = {worker.host: worker for worker in workers}
        # Proxy variables are meant for the internet, not for the Docker API.
        async with httpx.AsyncClient(
            base_url=self._host, timeout=_TIMEOUT_S, trust_env=False
        ) as api:
            containers = await self._containers(api)
            running = sorted(name for name, state in containers.items() if state in _RUNS)
            idle = sorted(name for name, state in containers.items() if state in _STARTABLE)
            instances = [
                instance(name, by_host.get(name[:_ID_SHOWN]), draining=name in draining)
                for name in running
            ]
            plan = reconcile(wanted, instances)
            if plan.start > len(idle):
                log.warning(
                    "%d more workers are wanted, but only %d containers of %s are idle: "
                    "docker compose create --scale %s=N makes more",
                    plan.start,
                    len(idle),
                    self._service,
                    self._service,
                )
            for name in idle[: plan.start]:
                await _do(api, name, "start")
            # Docker does not restart what was killed by request, whatever its restart policy.
            drained = [
                instance
                for instance in plan.drain
                if await _do(api, instance, "kill", signal="SIGTERM")
            ]
        return [name for name in running if name in draining or name in drained]

    async def _containers(self, api: httpx.AsyncClient) -> dict[str, str]:
        """Id -> state."""
        labels = [
            f"com.docker.compose.project={self._project}",
            f"com.docker.compose.service={self._service}",
            "com.docker.compose.oneoff=False",
        ]
        filters = json.dumps({"label": labels})
        reply = await api.get("/containers/json", params={"all": "true", "filters": filters})
        reply.raise_for_status()
        found: list[dict[str, Any]] = reply.json()
        return {container["Id"]: container["State"] for container in found}


async def _do(api: httpx.AsyncClient, container: str, what: str, **query: str) -> bool:
    """Start or kill one container; False if that failed (the next tick tries again)."""
    try:
        reply = await api.post(f"/containers/{container}/{what}", params=query)
        reply.raise_for_status()
    except httpx.HTTPError as error:
        log.warning("could not %s %s: %s", what, container[:_ID_SHOWN], error)
        return False
    log.info("%s %s %s", what, container[:_ID_SHOWN], " ".join(query.values()))
    return True
