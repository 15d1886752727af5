"""Connections to checked addresses: a name is looked up once, and what was checked is connected."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpcore

from shared.job.errors import WebhookUrlRefused
from shared.webhooks.address_check import AllowedAddresses, Target

_MOST_ADDRESSES = 4
"""Of one name: so many are tried, each for its part of the time."""
_RESOLVERS = 64
_LOOK_UP_S = 5.0


class Resolver:
    """Looks names up in threads of its own: a name server that hangs delays only these."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVERS, "webhook-resolver")

    async def addresses(self, target: Target) -> list[str]:
        """All addresses of the host. Raises OSError if it has none."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, _addresses, target.host, target.port
        )
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """Let the threads end; does not wait for name servers."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _addresses(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a part of the name is too long
        raise OSError(str(error)) from error
    return [str(address[0]) for *_, address in found]


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """The network for calls of one target, which was made of their URL."""

    def __init__(self, target: Target, resolver: Resolver, allowed: AllowedAddresses) -> None:
        self._target = target
        self._resolver = resolver
        self._allowed = allowed
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Look the target up, check all its addresses, and connect to one of them.

        Raises WebhookUrlRefused, OSError and httpcore's errors.
        """
        addresses = await self._resolver.addresses(self._target)
        self._allowed.check(self._target, addresses)
        error: Exception | None = None
        addresses = addresses[:_MOST_ADDRESSES]
        each_s = None if timeout is None else timeout / len(addresses)
        for address in addresses:
            try:
                return await self._network.connect_tcp(address, self._target.port, timeout=each_s)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as found:
                error = found
        assert error is not None
        raise error

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Never used. Raises WebhookUrlRefused."""
        raise WebhookUrlRefused("a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        """For httpcore's retries, of which there are none."""
        await asyncio.sleep(seconds)


async def check_url(url: str, allowed: AllowedAddresses, resolver: Resolver) -> None:
    """Check what a URL would call now. Raises WebhookUrlRefused."""
    target = allowed.target(url)
    try:
        async with asyncio.timeout(_LOOK_UP_S):
            addresses = await resolver.addresses(target)
    except (OSError, TimeoutError) as error:
        raise WebhookUrlRefused(f"{target.host!r} has no address now: {error}.") from error
    allowed.check(target, addresses)
