"""Other projects' proxies, each in front of a `direct` of its own, configured for production.

One process with one worker each, keep-alive to the engine, no debug logs. The programs must be in
PATH: nginx, and `pip install vllm-router` in an environment of its own.
"""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from typing import ClassVar

from load_tests.systems.system import System, UnavailableError
from tests.harness.servers import free_port

_STARTS_S = 120.0


class Proxy(System):
    """One proxy process and a `direct`."""

    may_fail = True
    program: ClassVar[str]

    @classmethod
    def prepare(cls) -> None:
        """Raises UnavailableError if the program is not installed."""
        if cls.path_of() is None:
            raise UnavailableError(f"there is no {cls.program} in PATH")

    @classmethod
    def path_of(cls) -> str | None:
        """Return the program's path; None if it is not installed."""
        folders = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
        return shutil.which(cls.program, path=folders)

    def start(self) -> None:
        """Start `direct`, then the proxy."""
        engine = self.start_server("load_tests.systems.direct")
        port = free_port()
        self.start_program("proxy", self.command(port, engine), port, _STARTS_S)
        self.ports = [port]

    @abstractmethod
    def command(self, port: int, engine: int) -> list[str]:
        """Return the command line of a proxy on `port` in front of `direct` on port `engine`."""


class Nginx(Proxy):
    """nginx without access log."""

    name = program = "nginx"

    def command(self, port: int, engine: int) -> list[str]:
        """Write the configuration and return the command line."""
        folder = self.folder / f"nginx-{port}"
        folder.mkdir()
        configuration = folder / "nginx.conf"
        configuration.write_text(_NGINX.format(port=port, engine=engine, folder=folder))
        return [str(self.path_of()), "-p", str(folder), "-c", str(configuration)]


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
    program = "vllm-router"

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
        given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return [str(self.path_of()), *given]
