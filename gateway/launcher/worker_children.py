"""The workers of one pool in a `flotilla up`: their numbers, names, ports and devices.

service.py keeps each of them running; supervisor.py and scaler.py start and drain them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.launcher.child import Command
from gateway.launcher.devices import device_of
from gateway.launcher.launcher_settings import LauncherSettings
from gateway.launcher.ports import HeldPorts, url_of
from gateway.launcher.service import Service

MakeService = Callable[[str, Callable[[], Command], Callable[[], str]], Service]
"""Of a name, a command, and where the process serves its probes."""


class Workers:
    """The running workers by number. A worker's number and port are free again after its end."""

    def __init__(
        self,
        settings: LauncherSettings,
        make_service: MakeService,
        command: Callable[..., Command],
        devices: Sequence[str],
        *,
        pool: str = "",
        ports: HeldPorts | None = None,
    ) -> None:
        """`devices`: see devices.py. `pool`: a part of the workers' names, if it is not empty.

        `ports`: by worker's name, of all pools.
        """
        self.services: dict[int, Service] = {}
        self.ids: dict[int, str] = {}
        """Number -> worker id of its present run."""
        self._settings = settings
        self._make_service = make_service
        self._command = command
        self._devices = devices
        self._run_id = secrets.token_hex(2)
        self._pool = pool
        self._ports = ports or HeldPorts()
        self._runs: dict[int, int] = {}

    def name_of(self, number: int) -> str:
        """The name of a worker for people."""
        return f"worker-{self._pool}-{number}" if self._pool else f"worker-{number}"

    def add(self) -> tuple[int, Service]:
        """Add a worker that the caller starts; returns its number and service."""
        number = next(n for n in range(1, len(self.services) + 2) if n not in self.services)
        name = self.name_of(number)
        service = self.services[number] = self._make_service(
            name,
            lambda: self._command_of(number),
            lambda: url_of(self._settings.worker_host, self._ports[name]),
        )
        return number, service

    def remove(self, number: int) -> None:
        """Forget a worker that has ended and is not started again."""
        del self.services[number]
        self._ports.release(self.name_of(number))
        self.ids.pop(number, None)

    def _command_of(self, number: int) -> Command:
        """Every run has a worker id of its own: Redis consumers are never used twice."""
        life = self._runs[number] = self._runs.get(number, 0) + 1
        pool = f"{self._pool}-" if self._pool else ""
        worker_id = f"{pool}w{number}-{self._run_id}" + (f"-{life}" if life > 1 else "")
        settings = self._settings
        port = self._ports.choose(self.name_of(number), settings.worker_host, settings.worker_port)
        self.ids[number] = worker_id
        command = self._command(worker_id=worker_id, worker_port=port)
        device = device_of(number, self._devices)
        return replace(command, environment={**command.environment, **device})
