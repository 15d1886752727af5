"""Every error of Flotilla's own. `to_openai` is the only place that renders them.

docs/pages/api/index.md has a table of the codes. Errors that vLLM answers are vLLM's own, byte for
byte, and are not here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from typing import ClassVar, Self

NO_RETRY = (b"x-should-retry", b"false")
_LONGEST_SLEEP_S = 120
"""Of a client. After a longer `retry-after` OpenAI's SDK does not try again; Anthropic's sleeps."""


def is_final(status: int) -> bool:
    """Whether a repetition can't change an answer of the engine, or a plug-in, with this status."""
    return status == 501 or (400 <= status < 500 and status not in (408, 409, 429))


class FlotillaError(Exception):
    """`str(error)` is the message for the client: what is wrong and what to do."""

    status: int = 500
    code: ClassVar[str | None] = None
    type: str = "server_error"
    retry_after_s: float | None = None
    """Seconds for the header `retry-after`. None: no header; who knows it calls `after`."""
    final: bool = False
    """A repetition of the request can't succeed. A header says so to the SDKs of OpenAI and
    Anthropic, which would repeat 408, 409, 429 and 5xx."""
    param: str | None = None

    def to_openai(self) -> bytes:
        """The body of the answer: OpenAI's error object as JSON."""
        error = {
            "message": str(self),
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": error}).encode()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the answer, in lower case, other than its content type."""
        fields, wait_s = [], self.retry_after_s
        if wait_s is not None:
            fields.append((b"retry-after", b"%d" % max(1, ceil(wait_s))))
            if wait_s < 1:  # a header of OpenAI's SDK, which goes before the other
                fields.append((b"retry-after-ms", b"%d" % max(1, ceil(1000 * wait_s))))
        if self.final or (wait_s or 0) > _LONGEST_SLEEP_S:
            fields.append(NO_RETRY)
        return fields

    def after(self, seconds: float | None) -> Self:
        """This error, with another `retry_after_s` than those of its class have."""
        self.retry_after_s = seconds
        return self


class BadRequest(FlotillaError):
    """The request is invalid. `param` names the field, if one is to blame."""

    status, type, final = 400, "invalid_request_error", True

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PreviousResponseNotFound(BadRequest):
    """The response that a request continues is not stored."""

    code = "previous_response_not_found"


class ConversationLocked(BadRequest):
    """A response that belongs to the conversation is being made."""

    code, final = "conversation_locked", False


class WebhookUrlRefused(BadRequest):
    """The URL of a webhook endpoint may not be called: it is not https, or not public."""

    code = "webhook_url_refused"

    def __init__(self, message: str) -> None:
        super().__init__(message, "url")


class WebhookUnreachable(BadRequest):
    """A test event got no answer from its webhook endpoint."""

    code, final = "webhook_unreachable", False


class Unauthorized(FlotillaError):
    """The request has no API key, or an unknown one."""

    status, code, type, final = 401, "invalid_api_key", "invalid_request_error", True

    def headers(self) -> list[tuple[bytes, bytes]]:
        """See FlotillaError."""
        return [*super().headers(), (b"www-authenticate", b"Bearer")]


class MissingScope(FlotillaError):
    """The API key lacks the scope that the route needs."""

    status, code, type, final = 403, "missing_scope", "invalid_request_error", True


class UnknownHost(FlotillaError):
    """A gateway without keys was addressed by a name that may be a web page's own."""

    status, code, type, final = 403, "unknown_host", "invalid_request_error", True


class ForeignSite(FlotillaError):
    """A web page of another site tries to change something."""

    status, code, type, final = 403, "foreign_site", "invalid_request_error", True


class NotFound(FlotillaError):
    """There is no such job, or it is another tenant's."""

    status, code, type, final = 404, "not_found", "invalid_request_error", True


class ModelNotFound(FlotillaError):
    """No worker has ever registered a model of this name."""

    status, code, type, final = 404, "model_not_found", "invalid_request_error", True
    param = "model"


class UnknownRoute(FlotillaError):
    """There is no such route. Another code than an unknown model's."""

    status, code, type, final = 404, "unknown_route", "invalid_request_error", True


class MethodNotAllowed(FlotillaError):
    """The path exists, but not for this method."""

    status, code, type, final = 405, "method_not_allowed", "invalid_request_error", True


class BodyTimeout(FlotillaError):
    """The body of the request did not arrive in time."""

    status, code, type = 408, "body_timeout", "invalid_request_error"


class BodyTooLarge(FlotillaError):
    """The body has too many bytes or values."""

    status, code, type, final = 413, "body_too_large", "invalid_request_error", True


class HeadersTimeout(FlotillaError):
    """The headers of the request did not arrive in time."""

    status, code, type = 408, "headers_timeout", "invalid_request_error"


class HeadersTooLarge(FlotillaError):
    """The headers have too many bytes or lines."""

    status, code, type, final = 431, "headers_too_large", "invalid_request_error", True


class RateLimited(FlotillaError):
    """A limit of the API key or its tenant has too little left; the type names the limit."""

    status, code, type, retry_after_s = 429, "rate_limit_exceeded", "requests", 1

    def __init__(
        self, message: str, kind: str = "", headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """`kind`: the limit; `headers`: further ones of the answer."""
        super().__init__(message)
        self.type = kind or self.type
        self._headers = headers

    def headers(self) -> list[tuple[bytes, bytes]]:
        """See FlotillaError."""
        return [*super().headers(), *self._headers]


class BudgetExceeded(RateLimited):
    """The API key or its tenant has used the tokens that it may use in a day or a month."""

    code, type, final = "budget_exceeded", "insufficient_quota", True


class QuotaExceeded(FlotillaError):
    """The tenant has as many jobs, conversations or bytes in Redis as it may keep."""

    status, code, type, retry_after_s = 429, "quota_exceeded", "insufficient_quota", 60
    final = True

    @classmethod
    def of(cls, what: str, number: int) -> QuotaExceeded:
        """`what`: jobs, conversations or bytes; `number`: how many are kept in the shard."""
        return cls(
            f"Your quota of kept {what} is used up: {number} are kept now. Delete responses and "
            "conversations that you do not need, or wait until they expire."
        )


class TooManyWaiting(FlotillaError):
    """As many jobs of the tenant wait in the lane as may."""

    status, code, type = 429, "too_many_waiting", "invalid_request_error"
    retry_after_s = 5


class BatchEnded(FlotillaError):
    """A batch that has ended can't be cancelled."""

    status, code, type, final = 409, "batch_ended", "invalid_request_error", True


class TooManyBatches(QuotaExceeded):
    """The tenant has as many batches, or as many open ones, as it may have."""

    code = "too_many_batches"


class TooManyWebhooks(QuotaExceeded):
    """The tenant has as many webhook endpoints as it may have."""

    code = "too_many_webhooks"


class TooManyConnections(FlotillaError):
    """The gateway has no file descriptor left for this connection."""

    status, code, retry_after_s = 503, "too_many_connections", 2


class TooManyBodies(FlotillaError):
    """The gateway holds as many bytes of bodies as it may."""

    status, code, retry_after_s = 503, "too_many_bodies", 1


class GatewayStopped(FlotillaError):
    """The gateway was stopped before the answer was complete."""

    status, code, retry_after_s = 503, "gateway_stopped", 1


class UnsupportedMediaType(FlotillaError):
    """The body has another content type than the endpoint's."""

    status, code, type, final = 415, "unsupported_media_type", "invalid_request_error", True


class UnsupportedCoding(UnsupportedMediaType):
    """The body is compressed in another way than the gateway unpacks."""

    code = "unsupported_encoding"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """See FlotillaError."""
        return [*super().headers(), (b"accept-encoding", b"gzip, deflate, zstd")]


class AnswerTooLarge(FlotillaError):
    """The answer is larger than a job may store."""

    status, code, type, final = 400, "answer_too_large", "invalid_request_error", True


class NotRepeatable(FlotillaError):
    """The job's request can't be submitted again."""

    status, code, type, final = 409, "not_repeatable", "invalid_request_error", True


class WorkerNotReady(FlotillaError):
    """The worker can't receive an operator call: it loads its model, or ends."""

    status, code, type, final = 409, "worker_not_ready", "invalid_request_error", True


class ModelInUse(FlotillaError):
    """The model has a worker, jobs or an open batch, or flotilla.yaml names it."""

    status, code, type, final = 409, "model_in_use", "invalid_request_error", True


class IdempotencyKeyReused(FlotillaError):
    """The idempotency key belongs to a request with another body."""

    status, code, type, final = 422, "idempotency_key_reused", "invalid_request_error", True


class JobFailed(FlotillaError):
    """The job ended without an answer; `code` says why."""

    code = "job_failed"


class WorkerLost(JobFailed):
    """The job's worker was lost after the answer had begun, and no other can continue it."""

    code = "worker_lost"


class ContextChanged(JobFailed):
    """The next worker would have continued the answer with another prompt, adapter or model."""

    code = "context_changed"


class TooManyAttempts(JobFailed):
    """Every worker that tried the job was lost."""

    code, final = "too_many_attempts", True


class RecordDamaged(JobFailed):
    """The job's record in Redis could not be read."""

    code = "record_damaged"


class LogLost(JobFailed):
    """Redis has lost tokens of the job's log."""

    code, final = "log_lost", True


class HookFailed(JobFailed):
    """A hook of the pool failed, so the answer was not passed on."""

    code = "hook_failed"


class Refused(JobFailed):
    """A hook of the pool refused the request or its answer; it may give another status and code."""

    status, code, type, final = 400, "refused", "invalid_request_error", True

    def __init__(self, message: str, status: int = 400, code: str = "refused") -> None:
        super().__init__(message)
        self.status = status
        self.final = is_final(status)
        self._code = code

    def to_openai(self) -> bytes:
        """See FlotillaError."""
        error = {"message": str(self), "type": self.type, "param": None, "code": self._code}
        return json.dumps({"error": error}).encode()


class Cancelled(JobFailed):
    """The job was cancelled."""

    status, code, type, final = 409, "cancelled", "job_cancelled", True


class Unattended(JobFailed):
    """The job was cancelled because no client followed it any more."""

    status, code, type, final = 409, "unattended", "job_cancelled", True


class DeadlineExceeded(JobFailed):
    """The job's deadline has passed."""

    status, code, final = 504, "deadline_exceeded", True


class QueueDeadlineExceeded(DeadlineExceeded):
    """No worker has started the job before its queue deadline."""

    code = "queue_deadline_exceeded"


class RunDeadlineExceeded(DeadlineExceeded):
    """The job was not complete at its run deadline."""

    code = "run_deadline_exceeded"


class OperationFailed(FlotillaError):
    """Workers could not do what an operator asked for; the answer names them."""

    status, code, final = 502, "operation_failed", True


class OperationIncomplete(OperationFailed):
    """Not all workers have answered an operator call in time."""

    status, code, final = 504, "operation_incomplete", True


class QueueFull(FlotillaError):
    """The lane has reached its limit of queued jobs."""

    status, code, retry_after_s = 503, "queue_full", 5


class RedisMemoryFull(FlotillaError):
    """Redis has no memory for a further job beside those that it has."""

    status, code, retry_after_s = 503, "redis_memory_full", 5


class DeadlineUnreachable(FlotillaError):
    """The job would wait for longer than its deadline, or its client, allows."""

    status, code, retry_after_s = 503, "deadline_unreachable", 5


class IntakeStopped(FlotillaError):
    """An operator has stopped the intake of the model's pool."""

    status, code, retry_after_s = 503, "intake_stopped", 30


class NoWorker(FlotillaError):
    """No worker has registered any model yet."""

    status, code, retry_after_s = 503, "model_unavailable", 5


class AutoscalerSilent(FlotillaError):
    """There is no recent decision of the autoscaler."""

    status, code, retry_after_s = 503, "autoscaler_silent", 5


class OverviewFailed(FlotillaError):
    """The overview could not be made, though Redis answers."""

    status, code, retry_after_s = 503, "overview_failed", 2


class RedisUnavailable(FlotillaError):
    """Redis can't be reached, or refuses writes."""

    status, code, retry_after_s = 503, "redis_unavailable", 2


class StorageNotConfigured(FlotillaError):
    """The gateway has no storage for files."""

    status, code, final = 501, "storage_not_configured", True

    def __init__(
        self,
        message: str = "This gateway stores no files: its setting FLOTILLA_STORAGE_URL is empty. "
        "It names a folder or a bucket (s3://, gs://, az://) that all gateways share.",
    ) -> None:
        super().__init__(message)


class KeysNotConfigured(FlotillaError):
    """The gateway keeps no API keys in Redis, as it needs none."""

    status, code, final = 501, "keys_not_configured", True


class StorageUnavailable(FlotillaError):
    """The storage of files can't be reached, is full, or is another one than the fleet's."""

    status, code, retry_after_s = 503, "storage_unavailable", 5

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause
        """What the storage has said: for the log, as it may name hosts and folders."""

    @classmethod
    def of(cls, cause: str) -> StorageUnavailable:
        """After an error of the storage."""
        return cls("The storage of files can't be reached or is full now; try again.", cause)


class BlobMissing(FlotillaError):
    """The storage has lost bytes of a file."""

    status, code, final = 500, "file_damaged", True


class FileTooLarge(FlotillaError):
    """The file has more bytes than a file may have."""

    status, code, type, final = 413, "file_too_large", "invalid_request_error", True
    param = "file"


class StorageQuotaExceeded(FlotillaError):
    """The tenant has as many files or bytes in the storage as it may keep."""

    status, code, type, final = 403, "storage_quota_exceeded", "insufficient_quota", True


class FileInUse(FlotillaError):
    """A batch that has not ended reads the file."""

    status, code, type, final = 409, "file_in_use", "invalid_request_error", True


class StreamReset(FlotillaError):
    """Redis has lost a part of the answer that was sent already."""

    code, final = "stream_reset", True

    @classmethod
    def refused(cls, message: str) -> StreamReset:
        """For a client that has another beginning of the stream than Redis: 409."""
        error = cls(message)
        error.status, error.type = 409, "invalid_request_error"
        return error


_ENDS: dict[str, tuple[type[JobFailed], str]] = {
    "worker_lost": (
        WorkerLost,
        "The worker was lost after this answer had begun, and the next one could not continue it; "
        "try again.",
    ),
    "context_changed": (
        ContextChanged,
        "The worker was lost after this answer had begun, and on the next one the request has "
        "another rendered prompt, other media, another adapter or another model; try again.",
    ),
    "record_damaged": (
        RecordDamaged,
        "This job's record in Redis was damaged, so the job has ended; try again.",
    ),
    "too_many_attempts": (
        TooManyAttempts,
        "Every worker that tried this job was lost, so it is not tried again.",
    ),
    "log_lost": (LogLost, "Redis has lost tokens of this answer; try again."),
    "cancelled": (
        Cancelled,
        "This job was cancelled. Its output so far is kept: `text` and `choices` of "
        "GET /jobs/{job_id}.",
    ),
    "unattended": (
        Unattended,
        "No client followed this job for longer than its `on_disconnect` allows, so it was "
        "cancelled. Its output so far is kept: `text` and `choices` of GET /jobs/{job_id}.",
    ),
    "deadline_exceeded": (DeadlineExceeded, "The deadline of this job has passed."),
    "queue_deadline_exceeded": (
        QueueDeadlineExceeded,
        "No worker was free before the queue deadline of this job, so it was not started.",
    ),
    "run_deadline_exceeded": (
        RunDeadlineExceeded,
        "The run deadline of this job has passed. Its output so far is kept: `text` and `choices` "
        "of GET /jobs/{job_id}.",
    ),
}


def job_error(code: str, job_id: str) -> JobFailed:
    """The error for a job that ended with this code (`error_code` of the job)."""
    kind, message = _ENDS.get(code, (JobFailed, "This job failed."))
    return kind(message.format(job_id=job_id))
