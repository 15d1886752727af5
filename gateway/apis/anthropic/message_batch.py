"""A batch as Anthropic shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, Self

from pydantic import BaseModel

from shared.batches.batch import Batch, BatchStatus

PATH = "/v1/messages/batches"
WINDOW_S = 86_400.0
KEPT_S = 29 * 86_400.0
"""How long the results are there, from the creation of the batch on."""

ProcessingStatus = Literal["in_progress", "canceling", "ended"]


class MessageBatchCounts(BaseModel):
    """Requests of a batch. All are `processing` until it has ended."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Those of a batch; their sum is its total."""
        if not batch.status.ended:
            return cls(processing=batch.total, succeeded=0, errored=0, canceled=0, expired=0)
        answered, cancelled, expired = batch.completed, batch.cancelled, batch.expired
        return cls(
            processing=0,
            succeeded=answered,
            errored=batch.total - answered - cancelled - expired,
            canceled=cancelled,
            expired=expired,
        )


class MessageBatch(BaseModel):
    """A batch of messages. Times are RFC 3339."""

    id: str
    type: Literal["message_batch"] = "message_batch"
    processing_status: ProcessingStatus
    request_counts: MessageBatchCounts
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    cancel_initiated_at: datetime | None
    archived_at: datetime | None
    """Since when its results are not there any more."""
    results_url: str | None
    """A path of this server; null until it has ended, and once it is archived."""

    @classmethod
    def of(cls, batch: Batch, now_s: float) -> Self:
        """A batch in the API's form."""
        ended, asked_at = batch.status.ended, batch.times.get(BatchStatus.CANCELLING)
        archived = ended and is_archived(batch, now_s)
        return cls(
            id=batch.id,
            processing_status=_status(batch.status),
            request_counts=MessageBatchCounts.of(batch),
            created_at=_time(batch.created_at),
            expires_at=_time(batch.expires_at),
            ended_at=_time(batch.times[batch.status]) if ended else None,
            cancel_initiated_at=None if asked_at is None else _time(asked_at),
            archived_at=_time(batch.created_at + KEPT_S) if archived else None,
            results_url=f"{PATH}/{batch.id}/results" if ended and not archived else None,
        )


class MessageBatchList(BaseModel):
    """A page of a tenant's batches, newest first."""

    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedMessageBatch(BaseModel):
    """A batch that is gone, with its results."""

    id: str
    type: Literal["message_batch_deleted"] = "message_batch_deleted"


def is_archived(batch: Batch, now_s: float) -> bool:
    """Whether the results of a batch that has ended are not there any more."""
    return now_s >= batch.created_at + KEPT_S


def _status(status: BatchStatus) -> ProcessingStatus:
    if status.ended:
        return "ended"
    return "canceling" if status is BatchStatus.CANCELLING else "in_progress"


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
