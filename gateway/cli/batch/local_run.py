"""`flotilla batch run --local`: a fleet of the command's own, with its data beside the output."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx

from gateway.cli.batch.run_state import RunState, state_path
from gateway.cli.command import Session
from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.gateway_client import Address, GatewayClient
from gateway.cli.output import note
from gateway.offline.fleet_process import FleetError, held
from gateway.offline.local_fleet import LocalFleet
from shared.platform.settings import SettingsError

LONGEST_WINDOW = "30d"
"""A run may be gone on with at any time."""
_DATA = ("redis", "files")


class FleetOptions(NamedTuple):
    """Those of `flotilla up`; None: not given."""

    model: str | None
    workers: int | None
    engine: str | None
    engine_args: str | None


def folder_of(output: Path) -> Path:
    """Where the fleet keeps its data: `out.jsonl.flotilla`."""
    return output.with_name(f"{output.name}.flotilla")


def local_fleet(options: FleetOptions, output: Path) -> LocalFleet:
    """The fleet of a run; it is not started yet. Raises CommandError."""
    try:
        return LocalFleet(**options._asdict(), folder=folder_of(output))
    except SettingsError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error


@contextlib.contextmanager
def on_fleet(session: Session, fleet: LocalFleet, state: RunState, output: Path) -> Iterator[None]:
    """Start the fleet, which the session calls in this block. Raises CommandError."""
    folder = folder_of(output)
    if state.file_id and not folder.exists():
        raise CommandError(
            f"{folder}, which has what was done so far, is gone: remove {state_path(output)} to "
            "begin anew",
            ExitCode.USAGE,
        )
    note(f"starting a fleet of its own; its log is {folder / 'fleet.log'}")
    # As Ctrl-C, so that the workers hand back what they run.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    remote = session.client
    try:
        with fleet:
            session.client = _FleetClient(fleet, remote.timeout_s)
            remote.close()
            yield
    except FleetError as error:
        raise CommandError(str(error)) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def clear(output: Path, *, keep_logs: bool) -> None:
    """Delete the data of a fleet that has ended. Raises CommandError if it has not."""
    folder = folder_of(output)
    if not folder.exists():
        return
    try:
        with held(folder):
            for each in [folder / name for name in _DATA] if keep_logs else [folder]:
                shutil.rmtree(each, ignore_errors=True)
    except FleetError as error:
        raise CommandError(str(error)) from error


class _FleetClient(GatewayClient):
    """Tells why the gateway of a local fleet is gone."""

    def __init__(self, fleet: LocalFleet, timeout_s: float) -> None:
        where = Address(fleet.url, {"authorization": f"Bearer {fleet.api_key}"})
        super().__init__(where, timeout_s)
        self._fleet = fleet

    def _lost(self, error: httpx.HTTPError) -> CommandError:
        try:
            self._fleet.check()
        except FleetError as ended:
            return CommandError(str(ended))
        return super()._lost(error)
