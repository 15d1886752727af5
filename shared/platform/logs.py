"""Log lines: structlog formats what the `logging` loggers named `flotilla.*` write.

One event is one line on stdout: JSON for machines, or text for people (`FLOTILLA_LOG_FORMAT`). Each
line has the time (ISO 8601, UTC), the level, the logger, and the ids that are bound where a request
or a run begins: `request_id`, `job_id`, `attempt`. JSON also has the process, as `gateway` or
`worker`. What libraries print goes to stderr: `flotilla up` shows stdout and keeps stderr in a
file.

Modules log through `logging.getLogger("flotilla.<part>")`; `extra={"pool": name}` adds a field.
Prompts, answers and keys are never logged, and passwords are cut out of Redis addresses.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import traceback
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, cast

import structlog
from structlog.contextvars import bind_contextvars, clear_contextvars, merge_contextvars
from structlog.typing import EventDict, Processor

from shared.platform.printable import escaped

__all__ = [
    "LogFormat",
    "RareWarning",
    "bind_contextvars",
    "bind_process",
    "clear_contextvars",
    "formatter",
    "is_json",
    "set_up",
    "show_warnings",
    "timestamp",
]

LogFormat = Literal["auto", "json", "pretty"]
_PASSWORD = re.compile(r"(\w+://)[^\s/@]*@")

_FORMATTED = {"message", "asctime"}  # what another formatter may have left in a record

_process_fields: dict[str, str] = {}


def set_up(level: str, log_format: LogFormat = "auto") -> None:
    """Send the `flotilla` loggers to stdout, and all other output on stdout to stderr."""
    as_json = is_json(log_format)
    own = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # child processes and C code inherit this
    sys.stdout = sys.stderr
    handler = logging.StreamHandler(own)
    handler.setFormatter(formatter(as_json=as_json))
    root = logging.getLogger("flotilla")
    root.handlers = [handler]
    root.propagate = False
    root.setLevel(level.upper())


def show_warnings(library: str, log_format: LogFormat = "auto") -> None:
    """Write a library's warnings in the format of ours, on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(as_json=is_json(log_format)))
    logger = logging.getLogger(library)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING)


def is_json(log_format: LogFormat) -> bool:
    """Whether lines are JSON. `auto`: unless stderr is a terminal, which `set_up` leaves alone."""
    return log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())


def bind_process(**fields: str) -> None:
    """Put these fields into every later line of JSON of this process, in all tasks and threads."""
    _process_fields.update(fields)


def timestamp(at_s: float) -> str:
    """Unix time as ISO 8601 in UTC, as all lines have it."""
    second = int(at_s)
    return f"{_second(second)}.{int((at_s - second) * 1e6):06d}Z"


@lru_cache(maxsize=2)
def _second(at_s: int) -> str:
    """Cached: many lines are of the same second."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def formatter(*, as_json: bool) -> logging.Formatter:
    """A formatter of log records: one line of JSON, or one line of text, for each."""
    common: list[Processor] = [
        _add_timestamp,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        merge_contextvars,
        _add_extra,
    ]
    render: list[Any]
    if as_json:
        render = [
            _add_process_fields,
            structlog.processors.format_exc_info,  # into one field, "exception"
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ]
    else:
        console = structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0, sort_keys=False)
        render = [_shorten_exception, console, _in_one_line]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=common,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *render,
            cast(Processor, _without_controls),
            cast(Processor, _without_passwords),
        ],
    )


class RareWarning:
    """A warning that may come often, as clients cause it or Redis is away.

    It is written once in `every_s`, with how many were left out.
    """

    def __init__(self, log: logging.Logger, every_s: float = 10.0) -> None:
        self._log = log
        self._every_s = every_s
        self._next = 0.0  # on the monotonic clock
        self._left_out = 0
        self._open = False  # written since the last `over`

    def __call__(self, text: str, *values: object, **fields: object) -> None:
        """Write it, with these `extra` fields, or count it."""
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return
        more = f" ({self._left_out} such lines left out before)" if self._left_out else ""
        self._log.warning(text + more, *values, extra=fields)
        self._next, self._left_out, self._open = now + self._every_s, 0, True

    def over(self, text: str, *values: object) -> None:
        """Write that what was warned of is over; nothing where no warning was written before."""
        if self._open:
            self._open = False
            self._log.info(text, *values)


def _add_process_fields(_logger: Any, _method: str, event: EventDict) -> EventDict:
    event.update(_process_fields)
    return event


def _add_timestamp(_logger: Any, _method: str, event: EventDict) -> EventDict:
    event["timestamp"] = timestamp(event["_record"].created)
    return event


def _add_extra(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """The fields given as `extra`. Attributes that every record has are none: vLLM adds its own."""
    record = vars(event["_record"])
    plain = vars(logging.getLogRecordFactory()("", 0, "", 0, "", (), None))
    for name in record.keys() - plain.keys() - _FORMATTED:
        event[name] = record[name]
    return event


def _shorten_exception(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """The traceback is for those who read log files, so it goes to stderr; the line names it."""
    exc_info = event.pop("exc_info", None)
    if exc_info and exc_info[1]:
        traceback.print_exception(exc_info[1], file=sys.stderr)
        event["event"] = f"{event['event']}: {exc_info[1]!r}"
    return event


def _in_one_line(_logger: Any, _method: str, line: str) -> str:
    """A client's text in an event must not look like another event."""
    return line.replace("\n", "\\n").replace("\r", "\\r")


def _without_controls(_logger: Any, _method: str, line: str) -> str:
    """A client's text must not control the reader's terminal."""
    return escaped(line)


def _without_passwords(_logger: Any, _method: str, line: str) -> str:
    return _PASSWORD.sub(r"\1***@", line) if "@" in line else line
