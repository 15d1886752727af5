"""A Prometheus as a child process, with the repository's rules and scrape jobs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.harness.client import http
from tests.harness.servers import free_port
from tests.harness.waiting import wait_for

FOLDER = Path(__file__).parents[2] / "compose" / "observability"
RULES = FOLDER / "rules" / "flotilla.yml"
MISSING = (
    "Prometheus is not installed (Debian: apt-get install --no-install-recommends prometheus), "
    "so rules and queries are not tested with it"
)


def installed() -> bool:
    """Return whether Prometheus and promtool are installed."""
    return bool(shutil.which("prometheus") and shutil.which("promtool"))


class Prometheus:
    """A Prometheus that scrapes every second the targets that `watch` sets."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._folder = folder
        self._log = folder / "prometheus.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._api = httpx.Client(base_url=f"{self.url}/api/v1", timeout=30)

    def start(self) -> None:
        """Start it and wait until it is ready."""
        config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(RULES)]
        for job in config["scrape_configs"]:
            del job["dns_sd_configs"]
            job["file_sd_configs"] = [{"files": [str(self._targets(job["job_name"]))]}]
            self.watch(job["job_name"], [])
        path = self._folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        command = [
            "prometheus",
            f"--config.file={path}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        wait_for(self._ready, "Prometheus is ready")

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"Prometheus ended:\n{self._log.read_text()[-3000:]}"
        try:
            return http.get(f"{self.url}/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> None:
        """Terminate it."""
        self._api.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)

    def watch(self, job: str, urls: Iterable[str]) -> None:
        """Set the targets of a scrape job."""
        targets = [url.removeprefix("http://") for url in urls]
        path = self._targets(job)
        new = path.with_suffix(".new")
        new.write_text(json.dumps([{"targets": targets}]))
        new.replace(path)

    def _targets(self, job: str) -> Path:
        return self._folder / f"{job}.json"

    def get(self, path: str, **parameters: Any) -> Any:
        """Call the API and return the data; fails with Prometheus' error message."""
        answer = self._api.get(path, params=parameters)
        assert answer.status_code == 200, f"{parameters}: {answer.text}"
        return answer.json()["data"]

    def up(self) -> dict[str, float]:
        """Return by instance whether the last scrape succeeded (1 or 0)."""
        found = self.query("up")
        return {sample["metric"]["instance"]: float(sample["value"][1]) for sample in found}

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the current series of a query."""
        data = self.get("/query", query=expr)
        assert data["resultType"] == "vector", f"{data['resultType']}: {expr}"
        series: list[dict[str, Any]] = data["result"]
        return series

    def values(self, expr: str) -> list[float]:
        """Return the current values of a query without NaN."""
        values = [float(sample["value"][1]) for sample in self.query(expr)]
        return [value for value in values if value == value]  # NaN is not equal to itself
