"""Installs other projects' proxies on first use: each Python package in a venv, versions pinned.

Environment variables: `PEER_<NAME>` is installed instead of the pinned requirement
(`PEER_PRODUCTION_STACK=/a/checkout` where GitHub can't be reached); `PEERS_PYTHON` is the Python
that makes the venvs. To install again, delete the folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".peers"
_INSTALL_S = 1200.0
_PROBE_S = 30.0


class UnavailableError(RuntimeError):
    """A program can't be installed on this machine; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class PythonPeer:
    """A proxy that pip installs."""

    name: str
    requirement: str
    program: str
    python: tuple[int, int] = (3, 11)
    """The oldest version it runs on."""

    def path(self) -> Path:
        """Return its program; installs it first if necessary. Raises UnavailableError."""
        venv = FOLDER / self.name
        done, program = venv / "requirement", venv / "bin" / self.program
        if not done.exists() or done.read_text() != self.requirement:
            print(f"installing {self.name} into {venv}", flush=True)
            self._install(venv)
            done.write_text(self.requirement)
        if not program.exists():
            raise UnavailableError(f"{self.requirement} has no {self.program}")
        return program

    def _install(self, venv: Path) -> None:
        variable = f"PEER_{self.name.upper().replace('-', '_')}"
        wanted = os.environ.get(variable) or self.requirement
        python = next((path for path in _pythons() if _is_at_least(path, self.python)), None)
        if python is None:
            version = ".".join(map(str, self.python))
            raise UnavailableError(f"there is no Python {version} (set PEERS_PYTHON)")
        _run([python, "-m", "venv", "--clear", str(venv)])
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _run([*pip, "--disable-pip-version-check", wanted])


def system_program(name: str) -> Path:
    """Return a program of this machine, also from sbin folders. Raises UnavailableError."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise UnavailableError(f"there is no {name} in PATH")
    return Path(found)


def _pythons() -> Iterator[str]:
    if chosen := os.environ.get("PEERS_PYTHON"):
        yield chosen
        return
    yield sys.executable
    yield from filter(None, (shutil.which(f"python3.{minor}") for minor in (12, 13)))
    yield from map(str, sorted(Path.home().glob(".pyenv/versions/3.1[23].*/bin/python3")))


def _is_at_least(python: str, version: tuple[int, int]) -> bool:
    test = f"import sys; sys.exit(sys.version_info < {version})"
    try:
        return not subprocess.run([python, "-c", test], capture_output=True).returncode
    except OSError:
        return False


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired:
        raise UnavailableError(
            f"took longer than {_INSTALL_S:.0f} s: {' '.join(command)}"
        ) from None
    if done.returncode:
        lines = done.stderr.splitlines() or [f"{command[0]} failed"]
        errors = [line.strip() for line in lines if line.lstrip().startswith(("ERROR", "fatal"))]
        raise UnavailableError((errors or lines)[0])
