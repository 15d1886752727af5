"""The exit codes of commands, and the error that carries one."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit status of every `flotilla` command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    TIMED_OUT = 6
    PARTIAL = 7
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "failed",
    ExitCode.USAGE: "wrong argument or setting",
    ExitCode.NOT_FOUND: "not found",
    ExitCode.REFUSED: "refused",
    ExitCode.UNREACHABLE: "no gateway answers",
    ExitCode.TIMED_OUT: "not in time",
    ExitCode.PARTIAL: "done in part",
    ExitCode.INTERRUPTED: "interrupted",
}
"""For the help text and the docs."""


class CommandError(Exception):
    """A command can't go on: `str(error)` is one line for people."""

    def __init__(
        self,
        message: str,
        code: ExitCode = ExitCode.FAILED,
        body: bytes | None = None,
        status: int = 0,
        retry_after_s: float | None = None,
    ) -> None:
        """`body`: the gateway's answer, if it is one that programs can read, and its `status`.

        `retry_after_s`: when it may be asked again, if it says so.
        """
        super().__init__(message)
        self.code = code
        self.body = body
        self.status = status
        self.retry_after_s = retry_after_s


_OF_STATUS = {
    401: ExitCode.REFUSED,
    403: ExitCode.REFUSED,
    404: ExitCode.NOT_FOUND,
    408: ExitCode.TIMED_OUT,
    409: ExitCode.REFUSED,
    429: ExitCode.REFUSED,
    501: ExitCode.REFUSED,
    503: ExitCode.REFUSED,
    504: ExitCode.TIMED_OUT,
}


def of_status(status: int) -> ExitCode:
    """The exit code for an HTTP status that is no success."""
    if status in _OF_STATUS:
        return _OF_STATUS[status]
    return ExitCode.USAGE if 400 <= status < 500 else ExitCode.FAILED
