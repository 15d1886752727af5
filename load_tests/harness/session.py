"""What every command that starts processes does around them."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from load_tests.harness import machine
from load_tests.harness.processes import ProcessError, Processes

RESULTS = Path(__file__).parents[1] / "results"


@contextlib.contextmanager
def session() -> Iterator[Processes]:
    """Processes with their logs in a folder of their own; they end with it, and on SIGTERM too.

    If a process fails, the folder stays, and the command ends with what is known.
    """
    signal.signal(signal.SIGTERM, _leave)
    folder = Path(tempfile.mkdtemp(prefix="flotilla-load-"))
    processes = Processes(folder)
    try:
        yield processes
    except ProcessError as error:
        sys.exit(f"{error}\n(logs: {folder})")
    except Exception:
        print(f"logs: {folder}", file=sys.stderr)
        raise
    finally:
        processes.close()
    shutil.rmtree(folder)


def default_path(command: str) -> Path:
    """Where the results of a command go that is not told otherwise."""
    return RESULTS / f"{command}-{time.strftime('%Y-%m-%dT%H%M%S')}.json"


def save(path: Path, data: dict[str, Any]) -> None:
    """As JSON, with the machine that it was measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine.describe(), **data}, indent=1) + "\n")


def names_of(text: str, known: Iterable[str]) -> list[str]:
    """What a comma separated option names; an unknown name ends the command."""
    names, there_are = text.split(","), list(known)
    for name in names:
        if name not in there_are:
            sys.exit(f"there is no {name!r}; there are {', '.join(there_are)}")
    return names


def say(line: str) -> None:
    """Tell who watches."""
    print(line, flush=True)


def _leave(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)
