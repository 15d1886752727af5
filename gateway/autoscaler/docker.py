"""Workers in containers that exist already: the autoscaler starts them and drains them.

`docker compose create --scale worker=MAX` makes them. So the Docker API is needed for three calls
only, list, start and kill, and a proxy in front of its socket can refuse all others: who breaks in
here can stop workers, but can't make a container, which would be to own the machine.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from typing import Any

import httpx

from gateway.autoscaler.reconcile import instance, reconcile
from shared.fleet.registry import WorkerInfo

log = logging.getLogger("flotilla.docker")

_TIMEOUT_S = 10.0
_ID_SHOWN = 12
"""Of a container's id, its host name unless somebody gave it another."""
_STARTABLE = frozenset({"created", "exited"})
_RUNS = frozenset({"running", "restarting"})


class Docker:
    """An actuator: the containers of one Compose service."""

    def __init__(self, host: str, project: str, service: str) -> None:
        """`host` is the URL of the Docker API, without TLS: a proxy on a network of its own."""
        self._host = host.replace("tcp://", "http://", 1)
        self._project = project
        self._service = service

    async def reconcile(
        self, wanted: int, workers: Sequence[WorkerInfo], told_to_drain: Collection[str]
    ) -> list[str]:
        """Start or drain containers; see `Actuator`."""
        by_host = {worker.host: worker for worker in workers}
        # A proxy for the world outside is not for the one in front of Docker's socket.
        async with httpx.AsyncClient(
            base_url=self._host, timeout=_TIMEOUT_S, trust_env=False
        ) as api:
            containers = await self._containers(api)
            running = sorted(name for name, state in containers.items() if state in _RUNS)
            idle = sorted(name for name, state in containers.items() if state in _STARTABLE)
            instances = [
                instance(name, by_host.get(name[:_ID_SHOWN]), told_to_drain=name in told_to_drain)
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
        return [name for name in running if name in told_to_drain or name in drained]

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
    """False if that one could not be done; the others may be, and the next tick comes."""
    try:
        reply = await api.post(f"/containers/{container}/{what}", params=query)
        reply.raise_for_status()
    except httpx.HTTPError as error:
        log.warning("could not %s %s: %s", what, container[:_ID_SHOWN], error)
        return False
    log.info("%s %s %s", what, container[:_ID_SHOWN], " ".join(query.values()))
    return True
