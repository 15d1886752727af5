"""Every error of Flotilla's own, in one tree. One place renders it for HTTP: `to_openai`.

    FlotillaError
    ├── BadRequest             400  the body can't be read as a request
    ├── Unauthorized           401  no key, or an unknown one
    ├── NotFound               404  no such job, or another tenant's
    ├── ModelNotFound          404  no worker ever served this model
    ├── NotSupported           404  a route of OpenAI's or vLLM's that is not served yet
    ├── MethodNotAllowed       405
    ├── BodyTimeout            408  the request's body did not arrive
    ├── BodyTooLarge           413
    ├── HeadersTimeout         408  the request's headers did not arrive
    ├── HeadersTooLarge        431
    ├── TooManyWrongKeys       429  one address sends wrong keys faster than they are answered
    ├── TooManyConnections     503  the process has no file descriptor left for this one
    ├── GatewayStopped         503  this gateway ends; the answer is not complete
    ├── UnsupportedMediaType   415  the body's content type is not JSON
    ├── JobFailed              500  the job ended without an answer; see `code`
    │   ├── WorkerLost         500  its worker was lost in the middle of the answer
    │   ├── TooManyAttempts    500  it took every worker down that tried it
    │   ├── LogLost            500  its log lacks tokens, so nobody can read the answer
    │   ├── Cancelled          409  somebody cancelled it
    │   └── DeadlineExceeded   504
    ├── QueueFull              503  the lane holds as much as it may
    ├── NoWorker               503  no worker has ever registered
    ├── AutoscalerSilent       503  how many workers there should be is not known now
    ├── RedisUnavailable       503
    └── StreamReset            500  Redis lost what a reader had already seen

Errors that vLLM answers are vLLM's own, byte for byte, and are not in this tree.
"""

from __future__ import annotations

import json
from typing import ClassVar


class FlotillaError(Exception):
    """`str(error)` is the message that the client reads."""

    status: ClassVar[int] = 500
    code: ClassVar[str | None] = None
    type: ClassVar[str] = "server_error"
    retry_after_s: ClassVar[int | None] = None
    """For `retry-after`; OpenAI's SDK obeys it up to 120 s."""
    final: ClassVar[bool] = False
    """To try again is of no use, though OpenAI's SDK does so at this status."""
    param: str | None = None

    def to_openai(self) -> bytes:
        """The body of the answer, in OpenAI's error shape."""
        error = {
            "message": str(self),
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": error}).encode()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What the answer needs beside its content type."""
        if self.final:
            return [(b"x-should-retry", b"false")]
        if self.retry_after_s is None:
            return []
        return [(b"retry-after", str(self.retry_after_s).encode())]


class BadRequest(FlotillaError):
    status, type = 400, "invalid_request_error"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Unauthorized(FlotillaError):
    status, code, type = 401, "invalid_api_key", "invalid_request_error"

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"www-authenticate", b"Bearer")]


class NotFound(FlotillaError):
    status, code, type = 404, "not_found", "invalid_request_error"


class ModelNotFound(FlotillaError):
    status, code, type, param = 404, "model_not_found", "invalid_request_error", "model"


class NotSupported(FlotillaError):
    status, code, type = 404, "not_supported", "invalid_request_error"


class MethodNotAllowed(FlotillaError):
    status, code, type = 405, "method_not_allowed", "invalid_request_error"


class BodyTimeout(FlotillaError):
    status, code, type = 408, "body_timeout", "invalid_request_error"


class BodyTooLarge(FlotillaError):
    status, code, type = 413, "body_too_large", "invalid_request_error"


class HeadersTimeout(FlotillaError):
    status, code, type = 408, "headers_timeout", "invalid_request_error"


class HeadersTooLarge(FlotillaError):
    status, code, type = 431, "headers_too_large", "invalid_request_error"


class TooManyWrongKeys(FlotillaError):
    status, code, type = 429, "too_many_wrong_keys", "invalid_request_error"
    retry_after_s = 10

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), (b"connection", b"close")]


class TooManyConnections(FlotillaError):
    status, code, retry_after_s = 503, "too_many_connections", 2


class GatewayStopped(FlotillaError):
    status, code, retry_after_s = 503, "gateway_stopped", 1


class UnsupportedMediaType(FlotillaError):
    status, code, type = 415, "unsupported_media_type", "invalid_request_error"


class JobFailed(FlotillaError):
    code = "job_failed"


class WorkerLost(JobFailed):
    code = "worker_lost"


class TooManyAttempts(JobFailed):
    code = "too_many_attempts"


class RecordDamaged(JobFailed):
    """The job's record in Redis could not be read."""

    code = "record_damaged"


class LogLost(JobFailed):
    code = "log_lost"


class Cancelled(JobFailed):
    status, code, type, final = 409, "cancelled", "job_cancelled", True


class DeadlineExceeded(JobFailed):
    status, code, final = 504, "deadline_exceeded", True


class QueueFull(FlotillaError):
    status, code, retry_after_s = 503, "queue_full", 5


class NoWorker(FlotillaError):
    status, code, retry_after_s = 503, "model_unavailable", 5


class AutoscalerSilent(FlotillaError):
    status, code, retry_after_s = 503, "autoscaler_silent", 5


class RedisUnavailable(FlotillaError):
    status, code, retry_after_s = 503, "redis_unavailable", 2


class StreamReset(FlotillaError):
    code = "stream_reset"


_ENDS: dict[str, tuple[type[JobFailed], str]] = {
    "worker_lost": (WorkerLost, "The worker was lost in the middle of this answer; try again."),
    "too_many_attempts": (TooManyAttempts, "Every worker that tried this job was lost with it."),
    "record_damaged": (
        RecordDamaged,
        "This job's record in Redis was damaged, so the job has ended; try again.",
    ),
    "log_lost": (LogLost, "Redis has lost tokens of this answer; try again."),
    "cancelled": (
        Cancelled,
        "This job was cancelled. What it had generated is kept: `text` and `choices` of "
        "GET /jobs/{job_id}.",
    ),
    "deadline_exceeded": (DeadlineExceeded, "This job's deadline passed before it was done."),
}


def job_error(code: str, job_id: str) -> JobFailed:
    """The error for a job that ended with this code (`error_code` of the job)."""
    kind, message = _ENDS.get(code, (JobFailed, "This job failed."))
    return kind(message.format(job_id=job_id))
