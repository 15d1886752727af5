"""What is changed in an engine's answer before it is stored and published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shared.job.job import LeasedJob
from worker.core.output_buffer import OutputBuffer


class AnswerEdit(Protocol):
    """The changes in the answer of one job. Both methods return what they do not change as is."""

    def chunk(self, data: bytes) -> bytes:
        """Server-sent events of a stream."""

    def whole(self, body: bytes) -> bytes:
        """An answer in one piece, which is no error."""


class EditedOutputBuffer(OutputBuffer):
    """Edits every chunk of a stream."""

    __slots__ = ("_edit",)

    def __init__(
        self, job: LeasedJob, notify: Callable[[OutputBuffer], None], edit: AnswerEdit
    ) -> None:
        super().__init__(job, notify)
        self._edit = edit

    def chunk(self, data: bytes) -> None:
        """Add server-sent events."""
        super().chunk(self._edit.chunk(data))
