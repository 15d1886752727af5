"""A fleet in containers: runs `docker compose` and inspects the containers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.harness.servers import free_port
from tests.harness.settings import ROOT
from tests.harness.waiting import wait_for


def docker(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Run a docker command; return its output."""
    done = subprocess.run(
        ["docker", *arguments],
        cwd=ROOT,
        env=os.environ | (env or {}),
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


@dataclass
class Fleet:
    """A Compose project on a free port; `settings` are environment variables of its files."""

    project: str
    settings: dict[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    """Override files; without them Compose finds its file by the root's .env, as for a user."""
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        """The gateway's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its `docker compose`."""
        return {
            "COMPOSE_PROJECT_NAME": self.project,
            "FLOTILLA_PORT": str(self.port),
            "IMAGE_TAG": "test",
            **self.settings,
        }

    def compose(self, *arguments: str) -> str:
        """Run `docker compose` for this project; return its output."""
        files = ("compose.yaml", *self.files) if self.files else ()
        chosen = [word for file in files for word in ("-f", f"compose/{file}")]
        return docker("compose", *chosen, *arguments, env=self.variables)

    def up(self, *arguments: str) -> None:
        """Start services, and wait until they are healthy."""
        self.compose("--profile", "sim", "up", "--detach", "--wait", "--quiet-pull", *arguments)

    def down(self) -> None:
        """Take everything down, volumes included."""
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "5")

    def containers(self, service: str) -> list[str]:
        """Return the full ids of a service's running containers."""
        return self.compose("--profile", "*", "ps", "--no-trunc", "-q", service).split()

    def execute(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's first container."""
        return subprocess.run(
            ["docker", "exec", self.containers(service)[0], *command],
            text=True,
            capture_output=True,
            timeout=60,
        )

    def jobs(self, n: int, model: str, prompt: str, **fields: Any) -> list[str]:
        """Submit jobs; returns their ids."""
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], **fields}
        wanted = {"endpoint": "/v1/chat/completions", "body": body}
        ids = []
        for _ in range(n):
            answer = httpx.post(f"{self.url}/jobs", json=wanted)
            assert answer.status_code == 202, answer.text
            ids.append(answer.json()["id"])
        return ids

    def job(self, job_id: str) -> dict[str, Any]:
        """Return a job as the API shows it."""
        answer = httpx.get(f"{self.url}/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    def ended(self, ids: list[str]) -> list[dict[str, Any]]:
        """Wait until all jobs have ended; return them."""
        terminal = {"completed", "failed", "cancelled", "expired"}

        def all_ended() -> list[dict[str, Any]]:
            jobs = [self.job(i) for i in ids]
            return jobs if all(job["state"] in terminal for job in jobs) else []

        return wait_for(all_ended, f"{len(ids)} jobs end", 180)


def outcomes(jobs: list[dict[str, Any]]) -> set[str]:
    """Return the set of states of the jobs, with the error code of failed ones."""
    return {f"{job['state']} {(job['error'] or {}).get('code', '')}".strip() for job in jobs}


def inspect(container: str) -> dict[str, Any]:
    """Return `docker inspect` of a container or an image."""
    known: dict[str, Any] = json.loads(docker("inspect", container))[0]
    return known


def healthy(container: str) -> bool:
    """Return whether a container runs and its health check passes."""
    state = inspect(container)["State"]
    return bool(state["Running"] and state["Health"]["Status"] == "healthy")


def crash(container: str) -> None:
    """Send SIGKILL to the process: Docker would not restart after `docker kill`."""
    os.kill(inspect(container)["State"]["Pid"], signal.SIGKILL)


def holder(job: dict[str, Any]) -> str:
    """Return the short id of the container whose worker ran the job last.

    A worker's id is `w-<host>-<random>`.
    """
    return str(job["attempts"][-1]["worker"]).split("-")[1]


def own_mb(image: str, base: str) -> tuple[float, float]:
    """Return the size of an image, and of what it adds to its base, in MB."""
    size, below = inspect(image)["Size"], inspect(base)["Size"]
    return size / 1e6, (size - below) / 1e6
