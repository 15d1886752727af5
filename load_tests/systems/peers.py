"""Other projects' proxies, each in front of a `direct` of its own, configured for production.

One process with one worker each, keep-alive to the engine, no debug logs.
"""

from __future__ import annotations

import json
import os
import secrets
from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from load_tests.bench.points import OPEN_STREAMS
from load_tests.harness.http import free_port, responds_ok
from load_tests.harness.processes import wait_for
from load_tests.systems.engine import MODEL
from load_tests.systems.peer_install import PythonPeer, system_program
from load_tests.systems.system import System

_KEY = f"sk-{secrets.token_hex(32)}"
_STARTS_S = 120.0


class Proxy(System):
    """One proxy process and a `direct`."""

    is_peer = may_fail = True
    ready_path: ClassVar[str] = "/health"
    environment: ClassVar[Mapping[str, str]] = {}
    """Environment variables besides those of this process."""

    def start(self) -> None:
        """Start `direct`, then the proxy."""
        engine = self.start_server("load_tests.systems.direct")
        port = free_port()
        environment = {**os.environ, **self.environment}
        command = self.command(port, engine)
        proxy = self._processes.start("proxy", "front", command, environment)
        self.processes.append(proxy)
        what = f"{self.name} is ready"
        wait_for(lambda: responds_ok(port, self.ready_path), what, [proxy], _STARTS_S)
        self.ports = [port]

    @abstractmethod
    def command(self, port: int, engine: int) -> list[str]:
        """Return the command line of a proxy on `port` in front of `direct` on port `engine`."""


class Nginx(Proxy):
    """nginx without access log."""

    name = "nginx"

    @classmethod
    def prepare(cls) -> None:
        """Check that nginx is installed."""
        system_program("nginx")

    def command(self, port: int, engine: int) -> list[str]:
        """Write the configuration and return the command line."""
        folder = self.folder / f"nginx-{port}"
        folder.mkdir()
        configuration = folder / "nginx.conf"
        configuration.write_text(_NGINX.format(port=port, engine=engine, folder=folder))
        return [str(system_program("nginx")), "-p", str(folder), "-c", str(configuration)]


_NGINX = """
daemon off;
worker_processes 1;
worker_rlimit_nofile 16384;
pid {folder}/pid;
error_log stderr error;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream engine {{
        server 127.0.0.1:{engine};
        keepalive 128;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


class RustRouter(Proxy):
    """vLLM's router in Rust, as the package index has it."""

    name = "rust-router"
    _package = PythonPeer(name, "vllm-router==0.1.17", "vllm-router")

    @classmethod
    def prepare(cls) -> None:
        """Install the package."""
        cls._package.path()

    def command(self, port: int, engine: int) -> list[str]:
        """Return the command line."""
        options = {
            "host": "127.0.0.1",
            "port": port,
            "worker-urls": f"http://127.0.0.1:{engine}",
            "policy": "round_robin",
            "log-level": "error",
            "prometheus-port": free_port(),
        }
        return [str(self._package.path()), *_options(options)]


class ProductionStack(Proxy):
    """The router of vLLM's production stack, in Python, at its state of 5 August 2026."""

    name = "production-stack"
    _package = PythonPeer(
        name,
        "git+https://github.com/vllm-project/production-stack"
        "@a6c01db05f65f556235413ba8dbcfb0c01132fff",
        "vllm-router",
        python=(3, 12),
    )

    @classmethod
    def prepare(cls) -> None:
        """Install the package."""
        cls._package.path()

    def command(self, port: int, engine: int) -> list[str]:
        """Return the command line."""
        options = {
            "host": "127.0.0.1",
            "port": port,
            "service-discovery": "static",
            "static-backends": f"http://127.0.0.1:{engine}",
            "static-models": MODEL,
            "routing-logic": "roundrobin",
            "log-level": "warning",
        }
        return [str(self._package.path()), *_options(options)]


class LiteLLM(Proxy):
    """LiteLLM's proxy without a database; too slow for the larger points."""

    name = "litellm"
    ready_path = "/health/liveliness"
    headers: ClassVar[dict[str, str]] = {"authorization": f"Bearer {_KEY}"}
    extra_events = 3  # the finish reason comes in an event of its own
    requests_divisor = 8
    skipped_points = frozenset({"c256", "c1024", "poisson40", "sat64", OPEN_STREAMS})
    environment: ClassVar[Mapping[str, str]] = {
        "LITELLM_MASTER_KEY": _KEY,
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    _package = PythonPeer(name, "litellm[proxy]==1.106.2", "litellm")

    @classmethod
    def prepare(cls) -> None:
        """Install the package."""
        cls._package.path()

    def command(self, port: int, engine: int) -> list[str]:
        """Write the configuration and return the command line."""
        parameters = {
            "model": f"hosted_vllm/{MODEL}",
            "api_base": f"http://127.0.0.1:{engine}/v1",
            "api_key": "none",
        }
        configuration = {
            "model_list": [{"model_name": MODEL, "litellm_params": parameters}],
            "general_settings": {"master_key": "os.environ/LITELLM_MASTER_KEY"},
        }
        path = self.folder / f"litellm-{port}.yaml"
        path.write_text(json.dumps(configuration, indent=1))  # JSON is YAML too
        options = {"config": path, "host": "127.0.0.1", "port": port, "num_workers": 1}
        return [str(self._package.path()), *_options(options)]


def _options(values: Mapping[str, object]) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]
