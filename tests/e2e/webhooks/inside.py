"""Run in a network namespace of its own: which addresses inside are reached, and by whose leave.

    unshare --net python -m tests.e2e.webhooks.inside

Every address is one of this namespace, and a receiver listens on all of them, so that nothing but
the check is in the way of a call.
"""

from __future__ import annotations

import asyncio
import json
import subprocess

from gateway.webhooks.webhook_sender import WebhookSender
from shared.webhooks.address_check import AllowedAddresses

PORT = 8443
ADDRESSES = [
    "10.0.0.1", "100.64.0.1", "169.254.169.254", "172.16.0.1", "192.0.0.8", "192.0.2.1",
    "192.88.99.1", "192.168.0.1", "198.18.0.1", "203.0.113.7", "64:ff9b::a00:1",
    "64:ff9b:1::808:808", "100::1", "2001::1", "2001:db8::1", "2002:a00:1::1", "3fff::1",
    "5f00::1", "fd00:ec2::254", "fec0::1",
]  # fmt: skip
"""What this namespace has beside loopback; link-local ones need the name of an interface."""
HOSTS = [
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:10.0.0.1]",
    "localhost", *(f"[{each}]" if ":" in each else each for each in ADDRESSES),
]  # fmt: skip
PUBLIC = "8.8.8.8"
"""Another one that it has: calls of public addresses are not what is refused."""
RUNS = {"nothing": (), "one": ("10.0.0.1",), "all": ("0.0.0.0/0", "::/0", "localhost")}
"""By name: FLOTILLA_WEBHOOK_ALLOW."""


def make_addresses() -> None:
    """Give this namespace its addresses."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in (*ADDRESSES, PUBLIC):
        words = [f"{address}/128", "nodad"] if ":" in address else [f"{address}/32"]
        subprocess.run(["ip", "address", "add", *words, "dev", "lo"], check=True)


async def reached() -> dict[str, list[str]]:
    """By run: the hosts that had a connection, whether anything was sent on it or not."""
    connections: list[str] = []

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append("")
        writer.transport.abort()

    found: dict[str, list[str]] = {}
    async with (
        await asyncio.start_server(connected, "0.0.0.0", PORT),
        await asyncio.start_server(connected, "::", PORT),
    ):
        for name, words in RUNS.items():
            sender, found[name] = WebhookSender(AllowedAddresses.of(words)), []
            for host in (*HOSTS, PUBLIC):
                connections.clear()
                for scheme in ("https", "http"):
                    await sender.post(f"{scheme}://{host}:{PORT}/", {}, b"{}")
                if connections:
                    found[name].append(host)
            sender.close()
    return found


if __name__ == "__main__":
    make_addresses()
    print(json.dumps(asyncio.run(reached())))
