"""Run in a network namespace of its own: which addresses inside a gateway calls for a webhook.

    unshare --net python -m tests.api.webhook_addresses FOLDER

Every address is one of this namespace, and a receiver listens on all of them, so that nothing but
the gateway's check is in the way of a call.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import httpx

from tests.harness.client import chat, http
from tests.harness.fleet import Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

MOST_ENDPOINTS = 20
"""Of a tenant."""
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
PORTS = {host: 8443 + number for number, host in enumerate((*HOSTS, PUBLIC))}
"""Each host is called at a port of its own, which tells who was called."""
RUNS = {"nothing": "", "one": "10.0.0.1", "all": "0.0.0.0/0,::/0,localhost"}
"""By name: FLOTILLA_WEBHOOK_ALLOW."""


def make_addresses() -> None:
    """Give this namespace its addresses."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in (*ADDRESSES, PUBLIC):
        words = [f"{address}/128", "nodad"] if ":" in address else [f"{address}/32"]
        subprocess.run(["ip", "address", "add", *words, "dev", "lo"], check=True)


def listen() -> list[int]:
    """The ports of the connections that come, of any address; each is ended at once."""
    connections: list[int] = []

    def accept(server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            connections.append(connection.getsockname()[1])
            connection.close()

    for port in PORTS.values():
        server = socket.create_server(
            ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64
        )
        threading.Thread(target=accept, args=[server], daemon=True).start()
    return connections


def call(gateway_url: str, urls: Sequence[str]) -> None:
    """Have a gateway send an event to each of these URLs that it takes for a webhook."""
    with httpx.Client(base_url=f"{gateway_url}/v1", timeout=60) as api:
        ids = []
        for url in urls:
            made = api.post(
                "/webhook_endpoints", json={"name": "n", "url": url, "event_types": ["job.failed"]}
            )
            if made.status_code == 400:
                assert made.json()["error"]["code"] == "webhook_url_refused", made.text
            else:
                ids.append(made.raise_for_status().json()["id"])
        if ids:
            request = {"body": chat(max_tokens=1), "webhooks": ids}
            http.post(f"{gateway_url}/jobs", json=request, timeout=60).raise_for_status()

        def was_tried(endpoint_id: str) -> bool:
            found = api.get(f"/webhook_endpoints/{endpoint_id}/deliveries").json()["data"]
            return bool(found and found[0]["tries"])

        for each in ids:
            wait_for(partial(was_tried, each), "the event was sent, or refused")
            api.delete(f"/webhook_endpoints/{each}").raise_for_status()


def reached(folder: Path) -> dict[str, list[str]]:
    """By run: the hosts that had a connection, whether anything was sent on it or not."""
    found: dict[str, list[str]] = {}
    redis = RedisServer(folder)
    redis.start()
    connections = listen()
    urls = [f"{scheme}://{host}:{PORTS[host]}/" for host in PORTS for scheme in ("https", "http")]
    try:
        for name, words in RUNS.items():
            with contextlib.closing(Stack(redis.url, folder)) as stack:
                stack.worker(sim_step_ms=1)
                stack.maintenance(webhook_allow=words)
                gateway = stack.gateway(webhook_allow=words)
                connections.clear()
                for at in range(0, len(urls), MOST_ENDPOINTS):
                    call(gateway.url, urls[at : at + MOST_ENDPOINTS])
                found[name] = [host for host, port in PORTS.items() if port in connections]
    finally:
        redis.stop()
    return found


if __name__ == "__main__":
    make_addresses()
    print(json.dumps(reached(Path(sys.argv[1]))))
