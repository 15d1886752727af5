"""An nginx as a child process, in a folder of its own, in front of gateways."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from tests.harness.servers import free_port
from tests.harness.waiting import wait_for

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
OPENSSL = shutil.which("openssl")
MISSING = "needs nginx and openssl (Debian: apt-get install --no-install-recommends nginx openssl)"

_HEAD = """
{user}
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{ worker_connections 256; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/answers;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    ssl_certificate {folder}/certificate.pem;
    ssl_certificate_key {folder}/key.pem;
    add_header X-Upstream $upstream_addr always;  # tells a test which gateway has answered
"""


class Nginx:
    """Serves HTTP at `urls` by name; each server has an own port and configuration."""

    def __init__(
        self,
        folder: Path,
        upstreams: Mapping[str, Sequence[str]],
        servers: Mapping[str, str],
        tls: Sequence[str] = (),
    ) -> None:
        """`upstreams`: URLs by name. `servers`: what stands in each `server`, by name; `tls`: the
        names of those that speak TLS, with the certificate `certificate` of 127.0.0.1.
        """
        ports = {name: free_port() for name in servers}
        self.urls = {
            name: f"{'https' if name in tls else 'http'}://127.0.0.1:{port}"
            for name, port in ports.items()
        }
        self.certificate = folder / "certificate.pem"
        self._folder = folder
        user = f"user {getpass.getuser()};" if os.getuid() == 0 else ""
        text = _HEAD.format(folder=folder, user=user)
        for name, urls in upstreams.items():
            lines = [f"server {url.removeprefix('http://')};" for url in urls]
            text += f"upstream {name} {{ {' '.join(lines)} }}\n"
        for name, inside in servers.items():
            ssl = " ssl" if name in tls else ""
            text += f"server {{ listen 127.0.0.1:{ports[name]}{ssl};\n{inside}\n}}\n"
        (folder / "nginx.conf").write_text(text + "}\n")

    def start(self) -> None:
        """Make the certificate and start nginx; returns when it listens."""
        assert NGINX
        assert OPENSSL
        key, certificate = self._folder / "key.pem", self.certificate
        command = [OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        command += ["-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True)
        log = self._folder / "error.log"
        self._process = subprocess.Popen(
            [NGINX, "-p", str(self._folder), "-c", str(self._folder / "nginx.conf"), "-e", str(log)]
        )

        def listens() -> bool:
            assert self._process.poll() is None, f"nginx ended:\n{log.read_text()}"
            try:
                for url in self.urls.values():
                    httpx.get(url, verify=False)
            except httpx.TransportError:
                return False
            return True

        wait_for(listens, "nginx listens")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(20)
