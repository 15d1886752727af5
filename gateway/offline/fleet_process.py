"""Starts and ends the process of a local fleet, which keeps its data in one folder.

The process starts Redis, a gateway, a maintenance process and workers, as `flotilla up` does. It
ends with its owner, the process that has started it, after `kill -9` of the owner too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import httpx

from gateway.launcher import log_files, run_file
from gateway.launcher.launcher_settings import LauncherSettings
from shared.fleet.pools import load_pools
from shared.platform.settings import SettingsError, load_all, load_settings

_POLL_S = 0.1
_EARLIER_END_S = 120.0
"""The longest wait for the fleet of an owner that was killed; its engines may have to end."""
_TAIL_LINES = 60
_TAIL_BYTES = 16 << 10
_TENANT = "local"


class FleetError(Exception):
    """A local fleet can't start, or has ended; the message has the last lines of its log."""


class FleetPlan(NamedTuple):
    """What is started."""

    workers: int
    flags: Mapping[str, Any]
    """Settings as flags of `flotilla up`; None: not given."""
    served_names: tuple[str, ...]
    """The model's names; empty: flotilla.yaml lists several pools."""


def plan(workers: int | None, **flags: str | None) -> FleetPlan:
    """Raises SettingsError for wrong settings, which else were found after minutes."""
    load_all(**flags)
    settings = load_settings(LauncherSettings, **flags)
    if settings.pools and workers is not None:
        raise SettingsError(f"{settings.config} has the numbers of workers, `workers` of each pool")
    pools = load_pools(settings).all
    names = pools[0].served_names if len(pools) == 1 else ()
    return FleetPlan(1 if workers is None else workers, flags, names)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder exists, is this process's alone, and the fleet of an earlier owner has ended.

    Raises FleetError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "owner.lock").open("a+") as lock:
        if not _locked(lock):
            lock.seek(0)
            raise FleetError(f"{folder} is in use by another process, pid {lock.read().strip()}")
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        _await_earlier_end(folder)
        yield


def _await_earlier_end(folder: Path) -> None:
    until = time.monotonic() + _EARLIER_END_S
    # The file by which gateway/launcher/local_redis.py locks the folder.
    with (folder / "lock").open("a+") as lock:
        while not _locked(lock):
            if time.monotonic() > until:
                run = run_file.running(folder)
                pid = f", pid {run.pid}" if run else ""
                raise FleetError(f"the earlier fleet of {folder} does not end{pid}")
            time.sleep(_POLL_S)


def _locked(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class FleetProcess:
    """A running local fleet. Its folder must be `held`."""

    def __init__(self, folder: Path, planned: FleetPlan) -> None:
        """Start it; it does not serve yet."""
        self.api_key = secrets.token_hex(16)
        """Without it, any user of this machine could call the gateway."""
        self.headers = {"authorization": f"Bearer {self.api_key}"}
        self.log = folder / "fleet.log"
        self._folder = folder
        self._names = planned.served_names
        flags = {
            **planned.flags,
            "host": "127.0.0.1",
            "port": 0,
            "worker_host": "127.0.0.1",
            "worker_port": 0,
            "api_keys": f"{_TENANT}:{self.api_key}",
            "storage_url": str((folder / "files").resolve()),
            # What these name is for another fleet.
            "autoscale": "",
            "maintenance_redis_url": "",
            # What runs when it ends goes on where it stopped, if the folder is used again.
            "drain_deadline_s": 0,
            "grace_s": 1,
        }
        order = {
            "owner": os.getpid(),
            "folder": str(folder.resolve()),
            "workers": planned.workers,
            "flags": {name: value for name, value in flags.items() if value is not None},
        }
        log_files.set_aside(self.log)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gateway.offline"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for its owner, which ends it
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps(order).encode() + b"\n")

    def wait_until_serving(self) -> tuple[str, str]:
        """The gateway's URL once a worker is ready, and its model. Raises FleetError.

        The model is empty if there are several pools.
        """
        # Proxies are for other machines.
        with httpx.Client(headers=self.headers, trust_env=False) as http:
            while True:
                self.check()
                run = run_file.running(self._folder)
                if run is not None and run.pid == self._process.pid:
                    ready = _ready_models(http, run.gateway_url)
                    if ready:
                        known = next((name for name in self._names if name in ready), ready[0])
                        return run.gateway_url, known if self._names else ""
                time.sleep(_POLL_S)

    def check(self) -> None:
        """Raises FleetError if it has ended."""
        status = self._process.poll()
        if status is not None:
            raise FleetError(f"the fleet has ended with status {status}:\n{self._tail()}")

    def stop(self) -> None:
        """End it, and wait until all of its processes have ended."""
        self._process.terminate()
        self._process.wait()

    def _tail(self) -> str:
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join([*lines, f"(the end of {self.log})"])


def _ready_models(http: httpx.Client, url: str) -> list[str]:
    try:
        cards = http.get(f"{url}/v1/models").json()["data"]
        return [str(card["id"]) for card in cards if card["flotilla"]["ready"]]
    except (httpx.HTTPError, ValueError, LookupError):
        return []
