"""Which TCP ports are free on this machine."""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Collection

# Linux uses none of these for outgoing connections, so none is taken between check and use.
_QUIET = range(20_000, 32_768)
_TRIES = 100


def listen_problem(host: str, port: int) -> OSError | None:
    """Why a server could not listen there now, or None."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # As servers do: connections of an earlier server that linger are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error
    return None


def free_port(host: str, first: int = 0, taken: Collection[int] = ()) -> int:
    """The first free port from `first` up that is not among `taken`; any if `first` is 0."""
    for port in range(first, 65536) if first else random.sample(_QUIET, _TRIES):
        if port not in taken and listen_problem(host, port) is None:
            return port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


class HeldPorts:
    """Ports that this process has chosen for others, by name, until these listen there and longer.

    On Linux another process of this machine that chooses does not get them meanwhile.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, socket.socket]] = {}

    def __getitem__(self, name: str) -> int:
        return self._held[name][0]

    def choose(self, name: str, host: str, first: int = 0) -> int:
        """A free port as of `free_port`, in place of the one that this name has had."""
        self.release(name)
        taken = {port for port, _ in self._held.values()}
        while (claim := _claim(port := free_port(host, first, taken))) is None:
            taken.add(port)
        self._held[name] = port, claim
        return port

    def release(self, name: str) -> None:
        """Forget the port of this name, if it has one."""
        if held := self._held.pop(name, None):
            held[1].close()


def _claim(port: int) -> socket.socket | None:
    """A socket that claims the port as long as it is open; None: another process has claimed it."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    if sys.platform == "linux":
        try:
            claim.bind(f"\0flotilla-port-{port}")  # abstract: ends with its process, has no file
        except OSError:
            claim.close()
            return None
    return claim


def url_of(host: str, port: int) -> str:
    """Where a client on this machine reaches a server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
