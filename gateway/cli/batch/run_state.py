"""What `flotilla batch run` has done: a small JSON file beside the output.

The same command reads it, and goes on where the one before was interrupted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.cli.batch.batch_input import BatchInput
from gateway.cli.exit_codes import CommandError, ExitCode


class RunState:
    """The state of one output file."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self._path = path
        self.input: dict[str, Any] = values["input"]
        self.file_id: str = values.get("file_id", "")
        self.endpoint: str = values.get("endpoint", "")
        self.batch_id: str = values.get("batch_id", "")
        self.batch: dict[str, Any] | None = values.get("batch")
        """The batch at its end, once its results are fetched."""
        self.is_retry: bool = values.get("is_retry", False)
        self.kept_bytes: int = values.get("kept_bytes", 0)
        """Of the output, before the answers of the batch are added."""

    def save(self) -> None:
        """Write it, whole or not at all."""
        values = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_text(json.dumps(values, indent=1) + "\n")
        new.replace(self._path)

    def begin_retry(self, output: Path) -> None:
        """Forget the batch that has ended; the failed lines of it are to run as another one."""
        self.file_id, self.batch_id, self.batch = "", "", None
        self.is_retry = True
        self.kept_bytes = output.stat().st_size if output.exists() else 0
        self.save()

    def remove(self) -> None:
        """Forget the run: the same command begins anew."""
        self._path.unlink(missing_ok=True)


def state_path(output: Path) -> Path:
    """Where the state of an output is."""
    return output.with_name(f"{output.name}.batch.json")


def errors_path(output: Path) -> Path:
    """Where the lines without an answer are: `out.errors.jsonl`."""
    return output.with_name(f"{output.stem}.errors{output.suffix}")


def input_key(source: BatchInput) -> dict[str, Any]:
    """What makes another run of it: the file, as far as its name, size and time tell."""
    stat = source.path.stat()
    return {
        "path": str(source.path.resolve()),
        "bytes": stat.st_size,
        "modified_ns": stat.st_mtime_ns,
        "endpoint": source.endpoint,
        "model": source.model,
    }


@contextlib.contextmanager
def opened(output: Path, key: dict[str, Any]) -> Iterator[RunState]:
    """The state of an output for this input, locked. Raises CommandError for another input's."""
    path = state_path(output)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CommandError(f"another command writes {output} now", ExitCode.REFUSED) from error
        try:
            yield _read(path, output, key)
        finally:
            Path(lock.name).unlink(missing_ok=True)


def _read(path: Path, output: Path, key: dict[str, Any]) -> RunState:
    try:
        state = RunState(path, json.loads(path.read_text()))
    except FileNotFoundError:
        if output.exists():
            raise CommandError(
                f"{output} exists already, and no run has begun it: name another one",
                ExitCode.USAGE,
            ) from None
        return RunState(path, {"input": key})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CommandError(f"{path} can't be read: {error}", ExitCode.USAGE) from error
    if state.input != key:
        raise CommandError(
            f"{output} is of another run ({state.input.get('path')}, or other options, or the file "
            f"has changed since): name another output, or remove {path}",
            ExitCode.USAGE,
        )
    return state
