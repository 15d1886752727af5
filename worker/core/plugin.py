"""The interface of a worker's plug-ins. The table of plug-ins is worker/plugins/table.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol


class EngineAnswer(NamedTuple):
    """A whole answer of the engine, with status 200."""

    content_type: str
    body: bytes
    """Of a stream, all of its events."""


Check = Callable[[EngineAnswer], Awaitable[None]]
"""Returns if the answer may be passed on; raises FlotillaErrors, which the client gets instead."""


class AroundRuns(Protocol):
    """Gets the request of each job before the engine does, and may check the answer."""

    async def before(self, path: str, job_id: str, body: bytes) -> tuple[bytes, Check | None]:
        """The body for the engine, and a check.

        The answer, streamed or not, is held until it is checked; None: it is passed on as it comes.
        Raises FlotillaErrors, which the client gets instead of an answer.
        """
