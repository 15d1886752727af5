"""A fleet, clients that send requests to it, and the check of every answer and record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from load_tests.clients.client_group import ClientGroup
from load_tests.clients.gateways import Gateways
from load_tests.harness.fleet import Fleet, FleetShape
from load_tests.oracle.differences import differences
from load_tests.oracle.observation import Observation
from load_tests.oracle.record_check import contradictions, record_errors
from load_tests.oracle.request_source import RequestSource
from load_tests.oracle.stored_job import StoredJob
from load_tests.oracle.verifier import Verifier
from shared.store.servers import Servers

_CHECK_S = 0.1

OnRead = Callable[[Observation, StoredJob | None], None]


class Trial:
    """An asynchronous context: it starts the fleet, and ends everything.

    Each request that has ended is compared with its record; `on_read` gets both.
    """

    fleet: Fleet
    clients: ClientGroup

    def __init__(
        self,
        folder: Path,
        shape: FleetShape,
        source: RequestSource,
        on_read: OnRead,
        *,
        timeout_s: float,
        attempts: int | None = None,
    ) -> None:
        """`timeout_s`: a client's limit for a request; `attempts`: see Gateways."""
        self.source = source
        self.end_s = 30.0
        """How long a job may run on after its client has left, before that counts as an error."""
        self._folder = folder
        self._shape = shape
        self._on_read = on_read
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._groups: list[ClientGroup] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Trial:
        await self.source.start()
        self.fleet = await asyncio.to_thread(Fleet, self._folder, self._shape)
        servers = Servers(self.fleet.redis_url, self._shape.shards)
        self._verifier = Verifier(servers, self._on_read, self.end_s)
        self.add_task(asyncio.create_task(self._verifier.run()))
        self.clients = self.add_clients()
        return self

    async def __aexit__(self, *_: object) -> None:
        for group in self._groups:
            await group.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.source.close()
        await asyncio.to_thread(self.fleet.close)

    def add_clients(self, headers: Mapping[str, str] | None = None) -> ClientGroup:
        """Return another group of clients, which send these headers."""
        gateways = Gateways(
            self.fleet.urls, timeout_s=self._timeout_s, attempts=self._attempts, headers=headers
        )
        group = ClientGroup(gateways, self._verifier.add, timeout_s=self._timeout_s)
        self._groups.append(group)
        return group

    def add_task(self, task: asyncio.Task[None]) -> None:
        """`check` raises this task's error; it is cancelled at the end."""
        self._tasks.append(task)

    def check(self) -> None:
        """Raise the error of a client or a task that has failed."""
        for group in self._groups:
            group.check()
        for task in self._tasks:
            if task.done():
                task.result()

    async def stop(self) -> None:
        """Begin no new requests; wait until all have ended and all records were read."""
        for group in self._groups:
            await group.stop()
        await self.all_read()

    async def all_read(self) -> None:
        """Wait until the record of each request that has ended was read."""
        while not self._verifier.idle:
            await asyncio.sleep(_CHECK_S)
            self.check()


def errors_of(seen: Observation, stored: StoredJob | None, *, strict: bool = True) -> list[str]:
    """Return what is wrong with an answer and its record; empty if nothing is.

    An answer may be incomplete, but what the client has must be right. Not `strict`: nor does the
    record have to be there.
    """
    errors = differences(seen).in_words()
    if not seen.accepted:
        return errors
    return errors + (record_errors(seen, stored) if strict else contradictions(seen, stored))
