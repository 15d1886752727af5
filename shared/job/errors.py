"""Every error of Flotilla's own; `shared/api/error_shapes.py` has Anthropic's shape of them.

The first line of a class's docstring is its text in the API's description and in the site's table.
Errors that vLLM answers are vLLM's own, byte for byte, and are not here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from typing import Any, Self

NO_RETRY = (b"x-should-retry", b"false")
_LONGEST_SLEEP_S = 120
"""Of a client. After a longer `retry-after` OpenAI's SDK does not try again; Anthropic's sleeps."""


def is_final(status: int) -> bool:
    """Whether a repetition can't change an answer of the engine, or a plug-in, with this status."""
    return status == 501 or (400 <= status < 500 and status not in (408, 409, 429))


class FlotillaError(Exception):
    """`str(error)` is the message for the client: what is wrong and what to do."""

    status = 500
    code: str | None = None
    type = "server_error"
    retry_after_s: float | None = None
    """Seconds for the header `retry-after`. None: no header; who knows it calls `after`."""
    final = False
    """A repetition of the request can't succeed. A header says so to the SDKs of OpenAI and
    Anthropic, which would repeat 408, 409, 429 and 5xx."""
    param: str | None = None

    further: Sequence[tuple[bytes, bytes]] = ()
    """Further headers of the answer."""

    def __init_subclass__(
        cls, status: int | None = None, retry: float | None = None, **fields: Any
    ) -> None:
        """`fields` are the above. Those that are not given follow from `status` (409 is final), and
        without that are the base's."""
        if status is not None:
            cls.status, cls.final = status, is_final(status) or status == 409
            cls.type = "invalid_request_error" if status < 500 else "server_error"
        if retry is not None:
            cls.retry_after_s = retry
        for name, value in fields.items():
            setattr(cls, name, value)

    def to_openai(self) -> bytes:
        """The body of the answer: OpenAI's error object as JSON."""
        error = {"message": str(self), "type": self.type, "param": self.param, "code": self.code}
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
        return [*fields, *self.further]

    def after(self, seconds: float | None) -> Self:
        """This error, with another `retry_after_s` than those of its class have."""
        self.retry_after_s = seconds
        return self


class BadRequest(FlotillaError, status=400):
    """The request can't be parsed, or a field or parameter is wrong (`param` names it)."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PreviousResponseNotFound(BadRequest, code="previous_response_not_found"):
    """The response to continue is not stored: a wrong id, deleted, expired, or `store: false`."""


class ConversationLocked(BadRequest, code="conversation_locked", final=False):
    """A response of the conversation is being made, or another request has just changed it."""


class WebhookUrlRefused(BadRequest, code="webhook_url_refused"):
    """The URL of a webhook endpoint is not https, or not all of its addresses are public."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "url")


class WebhookUnreachable(BadRequest, code="webhook_unreachable", final=False):
    """A test event got no answer from its webhook endpoint."""


class AnswerTooLarge(FlotillaError, status=400, code="answer_too_large"):
    """The answer is longer than 64 MiB: ask for fewer embeddings, or for `base64` or `bytes`."""


class Unauthorized(FlotillaError, status=401, code="invalid_api_key"):
    """The request has no API key, or one that is unknown, revoked or has expired."""

    further = ((b"www-authenticate", b"Bearer"),)


class MissingScope(FlotillaError, status=403, code="missing_scope"):
    """The API key lacks the scope that the route needs."""


class UnknownHost(FlotillaError, status=403, code="unknown_host"):
    """Without keys: `Host` is neither a name of the machine nor in `FLOTILLA_ALLOWED_HOSTS`."""


class ForeignSite(FlotillaError, status=403, code="foreign_site"):
    """Without keys: a web page of another site tries to change something."""


class StorageQuotaExceeded(
    FlotillaError, status=403, code="storage_quota_exceeded", type="insufficient_quota"
):
    """The tenant has as many files or bytes in the storage as it may keep."""


class NotFound(FlotillaError, status=404, code="not_found"):
    """There is no such object, or it has expired, or is another tenant's."""


class ModelNotFound(FlotillaError, status=404, code="model_not_found", param="model"):
    """No pool has a model of this name or version, or the API key may not use it."""


class UnknownRoute(FlotillaError, status=404, code="unknown_route"):
    """There is no such route."""


class MethodNotAllowed(FlotillaError, status=405, code="method_not_allowed"):
    """The path exists, but not for this method."""


class BodyTimeout(FlotillaError, status=408, code="body_timeout"):
    """The body of the request was not complete after 30 s."""


class HeadersTimeout(FlotillaError, status=408, code="headers_timeout"):
    """The headers of the request were not complete after 10 s."""


class BatchEnded(FlotillaError, status=409, code="batch_ended"):
    """A batch that has ended can't be cancelled."""


class FileInUse(FlotillaError, status=409, code="file_in_use"):
    """A batch that has not ended reads the file."""


class NotRepeatable(FlotillaError, status=409, code="not_repeatable"):
    """The job can't be repeated: it did not fail, or its request is not kept any more."""


class WorkerNotReady(FlotillaError, status=409, code="worker_not_ready"):
    """The worker can't receive an operator call: it loads its model, or ends."""


class ModelInUse(FlotillaError, status=409, code="model_in_use"):
    """The model has a worker, jobs or an open batch, or flotilla.yaml names it."""


class BodyTooLarge(FlotillaError, status=413, code="body_too_large"):
    """The body has too many bytes or values, or the answer to continue more than 4 MiB."""


class FileTooLarge(FlotillaError, status=413, code="file_too_large", param="file"):
    """The file has more bytes than a file may have (32 GiB)."""


class UnsupportedMediaType(FlotillaError, status=415, code="unsupported_media_type"):
    """The body has another content type, or content coding, than the endpoint takes."""


class UnsupportedCoding(UnsupportedMediaType, code="unsupported_encoding"):
    """The body is compressed in another way than `accept-encoding` of the answer names."""

    further = ((b"accept-encoding", b"gzip, deflate, zstd"),)


class IdempotencyKeyReused(FlotillaError, status=422, code="idempotency_key_reused"):
    """The `Idempotency-Key` was sent before with another body."""


class RateLimited(FlotillaError, status=429, code="rate_limit_exceeded", type="requests", retry=1):
    """A limit of the API key or its tenant has too little left; the message says which."""

    def __init__(
        self, message: str, kind: str = "", headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """`kind`: the limit; `headers`: further ones of the answer."""
        super().__init__(message)
        self.type = kind or self.type
        self.further = headers


class BudgetExceeded(RateLimited, code="budget_exceeded", type="insufficient_quota", final=True):
    """The API key or its tenant has used its tokens of a day or a month."""


class QuotaExceeded(
    FlotillaError,
    status=429,
    code="quota_exceeded",
    type="insufficient_quota",
    retry=60,
    final=True,
):
    """The tenant keeps as many bytes in Redis as it may: delete some of its data, or wait."""

    @classmethod
    def of(cls, n_bytes: int) -> QuotaExceeded:
        """`n_bytes`: what the tenant keeps in the shard."""
        return cls(
            f"Your quota of bytes that are kept is used up: you keep {n_bytes:,}. Delete responses "
            "and conversations that you do not need, or wait until jobs expire. The operator's "
            "setting is FLOTILLA_MAX_KEPT_BYTES; its default is a quarter of Redis' memory, or "
            "more while no other tenant keeps data."
        )


class TooManyBatches(QuotaExceeded, code="too_many_batches"):
    """The tenant has as many batches, or as many open ones, as it may have."""


class TooManyWebhooks(QuotaExceeded, code="too_many_webhooks"):
    """The tenant has as many webhook endpoints as it may have (20)."""


class TooManyWaiting(FlotillaError, status=429, code="too_many_waiting", retry=5):
    """As many jobs of the tenant wait in the lane as may (`FLOTILLA_MAX_WAITING_JOBS`)."""


class HeadersTooLarge(FlotillaError, status=431, code="headers_too_large"):
    """The request line and headers exceed 32 KiB or 200 fields."""


class JobFailed(FlotillaError, status=500, code="job_failed"):
    """The job ended without an answer."""

    message = "This job failed."
    """Of those that `job_error` makes; `{job_id}` is the job's."""


class WorkerLost(JobFailed, code="worker_lost"):
    """The worker was lost in the middle of the answer, and the next one could not continue it."""

    message = (
        "The worker was lost after this answer had begun, and the next one could not continue it; "
        "try again."
    )


class ContextChanged(JobFailed, code="context_changed"):
    """The next worker would continue the answer with another prompt, media, adapter or model."""

    message = (
        "The worker was lost after this answer had begun, and on the next one the request has "
        "another rendered prompt, other media, another adapter or another model; try again."
    )


class TooManyAttempts(JobFailed, code="too_many_attempts", final=True):
    """As many workers as a job may lose were lost with this one, and none added to its answer."""

    message = "Every worker that tried this job was lost, so it is not tried again."


class RecordDamaged(JobFailed, code="record_damaged"):
    """The job's record in Redis could not be read."""

    message = "This job's record in Redis was damaged, so the job has ended; try again."


class LogLost(JobFailed, code="log_lost", final=True):
    """Tokens of the answer are missing in Redis."""

    message = "Redis has lost tokens of this answer; try again."


class Cancelled(JobFailed, status=409, code="cancelled", type="job_cancelled"):
    """The job was cancelled; its output so far is in `GET /jobs/{id}`."""

    message = (
        "This job was cancelled. Its output so far is kept: `text` and `choices` of "
        "GET /jobs/{job_id}."
    )


class Unattended(JobFailed, status=409, code="unattended", type="job_cancelled"):
    """No client followed the job for longer than `on_disconnect` allows, so it was cancelled."""

    message = (
        "No client followed this job for longer than its `on_disconnect` allows, so it was "
        "cancelled. Its output so far is kept: `text` and `choices` of GET /jobs/{job_id}."
    )


class DeadlineExceeded(JobFailed, status=504, code="deadline_exceeded", final=True):
    """The job's deadline has passed."""

    message = "The deadline of this job has passed."


class QueueDeadlineExceeded(DeadlineExceeded, code="queue_deadline_exceeded"):
    """No worker has started the job before its queue deadline."""

    message = "No worker was free before the queue deadline of this job, so it was not started."


class RunDeadlineExceeded(DeadlineExceeded, code="run_deadline_exceeded"):
    """The job was not complete at its run deadline."""

    message = (
        "The run deadline of this job has passed. Its output so far is kept: `text` and `choices` "
        "of GET /jobs/{job_id}."
    )


class StreamReset(FlotillaError, status=500, code="stream_reset", final=True):
    """Redis has lost a part of the answer that was sent already, or (409) that `crc32` names."""

    @classmethod
    def refused(cls, message: str) -> StreamReset:
        """For a client that has another beginning of the stream than Redis: 409."""
        error = cls(message)
        error.status, error.type = 409, "invalid_request_error"
        return error


class BlobMissing(FlotillaError, status=500, code="file_damaged", final=True):
    """The storage has lost bytes of the file."""


class StorageNotConfigured(FlotillaError, status=501, code="storage_not_configured"):
    """Files and batches need `FLOTILLA_STORAGE_URL`."""

    def __init__(
        self,
        message: str = "This gateway stores no files: its setting FLOTILLA_STORAGE_URL is empty. "
        "It names a folder or a bucket (s3://, gs://, az://) that all gateways share.",
    ) -> None:
        super().__init__(message)


class KeysNotConfigured(FlotillaError, status=501, code="keys_not_configured"):
    """The gateway keeps no API keys in Redis, as it needs none."""


class OperationFailed(FlotillaError, status=502, code="operation_failed", final=True):
    """Workers could not do what an operator asked for; `operation` has each worker's answer."""


class OperationIncomplete(OperationFailed, status=504, code="operation_incomplete", final=True):
    """Not all workers have answered an operator call in time; the others still carry it out."""


class TooManyConnections(FlotillaError, status=503, code="too_many_connections", retry=2):
    """The gateway has no file descriptor left for this connection."""


class TooManyBodies(FlotillaError, status=503, code="too_many_bodies", retry=1):
    """The gateway holds as many bytes of bodies as it may (`FLOTILLA_MAX_HELD_BODY_BYTES`)."""


class GatewayStopped(FlotillaError, status=503, code="gateway_stopped", retry=1):
    """The gateway was stopped before the answer was complete: follow the job at another one."""


class QueueFull(FlotillaError, status=503, code="queue_full", retry=5):
    """The lane has reached its limit of queued jobs."""


class RedisMemoryFull(FlotillaError, status=503, code="redis_memory_full", retry=5):
    """Redis' memory is almost full: nothing new is accepted of those who keep most of it."""

    @classmethod
    def of(cls, n_bytes: int) -> RedisMemoryFull:
        """`n_bytes`: what the tenant keeps in the shard."""
        return cls(
            "Redis' memory is almost full (FLOTILLA_REDIS_HIGH_WATERMARK), so nothing new is "
            f"accepted of those who keep most of it; you keep {n_bytes:,} bytes. Delete responses "
            "and conversations that you do not need, or wait until jobs expire."
        )


class DeadlineUnreachable(FlotillaError, status=503, code="deadline_unreachable", retry=5):
    """The job would wait for longer than its deadline or `max_wait_s` allows."""


class IntakeStopped(FlotillaError, status=503, code="intake_stopped", retry=30):
    """An operator has stopped the intake of the model's pool."""


class NoWorker(FlotillaError, status=503, code="model_unavailable", retry=5):
    """No worker has registered any model yet."""


class AutoscalerSilent(FlotillaError, status=503, code="autoscaler_silent", retry=5):
    """There is no recent decision of the autoscaler."""


class OverviewFailed(FlotillaError, status=503, code="overview_failed", retry=2):
    """The overview could not be made, though Redis answers; the gateway's log says why."""


class RedisUnavailable(FlotillaError, status=503, code="redis_unavailable", retry=2):
    """Redis can't be reached, or refuses writes."""


class StorageUnavailable(FlotillaError, status=503, code="storage_unavailable", retry=5):
    """The storage of files can't be reached, is full, or is another one than the fleet's."""

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause
        """What the storage has said: for the log, as it may name hosts and folders."""


_OF_ENDS = (
    *(WorkerLost, ContextChanged, TooManyAttempts, RecordDamaged, LogLost, Cancelled, Unattended),
    *(DeadlineExceeded, QueueDeadlineExceeded, RunDeadlineExceeded),
)


def job_error(code: str, job_id: str) -> JobFailed:
    """The error for a job that ended with this code (`error_code` of the job)."""
    kind = next((kind for kind in _OF_ENDS if kind.code == code), JobFailed)
    return kind(kind.message.format(job_id=job_id))
