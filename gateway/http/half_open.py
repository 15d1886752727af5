"""Half-open connections: the client's machine or network is gone, and sent no packet to close them.

The kernel detects them: it resends what is not acknowledged, and probes connections on which
nothing is sent. Without these limits it would try for about 15 minutes, and probe nothing.
"""

from __future__ import annotations

import socket


def limit_half_open(listener: socket.socket, timeout_s: float) -> None:
    """End the connections that `listener` accepts if their clients answer nothing for that time.

    Accepted sockets inherit the options. A client that reads nothing is ended too, as soon as its
    receive buffer is full.
    """
    options = {
        "TCP_USER_TIMEOUT": int(timeout_s * 1000),
        "TCP_KEEPIDLE": max(1, int(timeout_s / 2)),
        "TCP_KEEPINTVL": max(1, int(timeout_s / 4)),
    }
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        if hasattr(socket, name):  # not everywhere
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
