"""Which TCP ports are free on this machine."""

from __future__ import annotations

import random
import socket
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


def url_of(host: str, port: int) -> str:
    """Where a client on this machine reaches a server that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
