"""How the transports connect, where the caller has not brought a transport."""

from __future__ import annotations

import socket

import httpx

LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=100)
"""As OpenAI's client; httpx's own limit of 100 would hold the 101st stream back."""

# A peer whose machine is gone is noticed after about 15 + 3 * 5 s, in an answer without a byte too.
SOCKET_OPTIONS = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)  # not everywhere
]
