"""Around every command that starts processes: logs, clean-up, progress lines, result files."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from load_tests.harness import machine
from load_tests.harness.errors import RunError
from load_tests.harness.table import Table
from tests.harness.fleet import Stack
from tests.harness.waiting import ProcessError

_END_S = 15.0
RESULTS = Path(__file__).parents[1] / "results"

Progress = Callable[[str], None]
"""Takes a line that tells how far a run is."""


@contextlib.contextmanager
def session() -> Iterator[Stack]:
    """Provide a stack with a log folder and no Redis; end it at the end and on SIGTERM.

    Its processes are not forked, as their memory and CPU time are measured. After a failure the
    folder is kept. A RunError or ProcessError ends the command with its message and exit status 1.
    """
    signal.signal(signal.SIGTERM, _exit)
    folder = Path(tempfile.mkdtemp(prefix="flotilla-load-"))
    processes = Stack("", folder, fork=False, end_s=_END_S)
    try:
        yield processes
    except (RunError, ProcessError) as error:
        sys.exit(f"{error}\n(logs: {folder})")
    except Exception:
        print(f"logs: {folder}", file=sys.stderr)
        raise
    finally:
        processes.close()
    shutil.rmtree(folder)


def add_options(parser: argparse.ArgumentParser, options: Mapping[str, tuple[Any, str]]) -> None:
    """Add options: the default of each, and its help. A type as default: there is none."""
    for name, (default, text) in options.items():
        if default is False:
            parser.add_argument(name, action="store_true", help=text)
        elif isinstance(default, type):
            parser.add_argument(name, type=default, help=text)
        else:
            shown = f"{text} (default {default})"
            parser.add_argument(name, type=type(default), default=default, help=shown)


OUTPUT: Mapping[str, tuple[Any, str]] = {
    "--json": (Path, "result file (default load_tests/results/...)"),
}
"""The option of `save_result`."""


def print_tables(tables: Iterable[Table]) -> None:
    """Print the tables that have rows."""
    for table in tables:
        if table.rows:
            print(f"\n{table.text()}")


def save_result(given: Path | None, name: str, data: dict[str, Any]) -> None:
    """Write data as JSON, with a description of this machine unless `data` has one.

    `given`: the file that the option `--json` names; without it one in RESULTS is named after
    `name` and the time. Prints its path.
    """
    prefix = f"{name}-" if name else ""
    path = given or RESULTS / f"{prefix}{time.strftime('%Y-%m-%dT%H%M%S')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine.describe(), **data}, indent=1) + "\n")
    print(f"\nresults: {path}")


def parse_names(text: str, known: Iterable[str]) -> list[str]:
    """Split a comma-separated option; exits with a message if a name is not in `known`."""
    names, valid = [name for name in text.split(",") if name], list(known)
    for name in names:
        if name not in valid:
            sys.exit(f"unknown name {name!r}; valid names: {', '.join(valid)}")
    return names


def print_progress(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def _exit(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)
