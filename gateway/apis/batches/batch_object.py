"""A batch as the API shows it: OpenAI's object."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel

from shared.batches.batch import Batch, BatchStatus, Usage


class RequestCounts(BaseModel):
    """Lines of a batch."""

    total: int
    """0 until the input is checked."""
    completed: int
    failed: int


class CachedTokens(BaseModel):
    """A part of the input tokens."""

    cached_tokens: int


class ReasoningTokens(BaseModel):
    """A part of the output tokens."""

    reasoning_tokens: int


class BatchUsage(BaseModel):
    """Tokens of all lines that have ended."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> Self:
        """The same in the API's form."""
        return cls(
            input_tokens=usage.input_tokens,
            input_tokens_details=CachedTokens(cached_tokens=usage.cached_tokens),
            output_tokens=usage.output_tokens,
            output_tokens_details=ReasoningTokens(reasoning_tokens=usage.reasoning_tokens),
            total_tokens=usage.input_tokens + usage.output_tokens,
        )


class BatchError(BaseModel):
    """What is wrong with the input."""

    code: str
    message: str
    line: int | None
    param: str | None


class BatchErrors(BaseModel):
    """Why a batch has failed: its first errors; while it is in progress, the limit that it waits
    for."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class BatchObject(BaseModel):
    """A batch. Times are Unix seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    """Null if it is not known yet, or if the lines have several."""
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    """Null until it has ended, and if no line has an answer."""
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """A batch in the API's form."""
        errors = [BatchError(**error._asdict()) for error in batch.errors]
        times = {status: int(at) for status, at in batch.times.items()}
        return cls(
            id=batch.id,
            endpoint=batch.endpoint,
            model=batch.model or None,
            errors=BatchErrors(data=errors) if errors else None,
            input_file_id=batch.input_file_id,
            completion_window=batch.completion_window,
            status=batch.status,
            output_file_id=batch.output_file_id or None,
            error_file_id=batch.error_file_id or None,
            created_at=int(batch.created_at),
            in_progress_at=times.get(BatchStatus.IN_PROGRESS),
            expires_at=int(batch.expires_at),
            finalizing_at=times.get(BatchStatus.FINALIZING),
            completed_at=times.get(BatchStatus.COMPLETED),
            failed_at=times.get(BatchStatus.FAILED),
            expired_at=times.get(BatchStatus.EXPIRED),
            cancelling_at=times.get(BatchStatus.CANCELLING),
            cancelled_at=times.get(BatchStatus.CANCELLED),
            request_counts=RequestCounts(
                total=batch.total, completed=batch.completed, failed=batch.failed
            ),
            usage=BatchUsage.of(batch.usage),
            metadata=None if batch.metadata is None else dict(batch.metadata),
        )


class BatchList(BaseModel):
    """A page of a tenant's batches, newest first."""

    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
