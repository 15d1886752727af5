"""Which errors of Flotilla's own each operation can answer, for the API's description.

Errors of vLLM are passed on with their own status, so the description has `4XX` and `5XX` too.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.http.middleware import ADMIN_PATHS
from shared.api.endpoints import ENDPOINTS
from shared.api.operator_actions import PATHS as OPERATOR_PATHS
from shared.job import errors
from shared.job.errors import FlotillaError

Kind = type[FlotillaError]

_EVERYWHERE: tuple[Kind, ...] = (
    errors.BadRequest,
    errors.UnknownHost,
    errors.MethodNotAllowed,
    errors.HeadersTimeout,
    errors.HeadersTooLarge,
    errors.TooManyConnections,
    errors.GatewayStopped,
)
_WITH_A_KEY: tuple[Kind, ...] = (errors.Unauthorized, errors.TooManyWrongKeys)
_FROM_REDIS: tuple[Kind, ...] = (errors.RedisUnavailable,)
_OF_A_BODY: tuple[Kind, ...] = (
    errors.BodyTimeout,
    errors.BodyTooLarge,
    errors.IdempotencyKeyReused,
    errors.ModelNotFound,
    errors.NoWorker,
    errors.IntakeStopped,
    errors.QueueFull,
    errors.QuotaExceeded,
)

_OF_AN_OPERATION: tuple[Kind, ...] = (
    errors.NotFound,
    errors.NoWorker,
    errors.BodyTimeout,
    errors.BodyTooLarge,
    errors.OperationFailed,
    errors.OperationIncomplete,
)


def errors_of(method: str, path: str, *, public: bool) -> Iterator[Kind]:
    """The errors of one operation. `public`: it needs no key."""
    yield from _EVERYWHERE
    if method not in ("get", "head", "options"):
        yield from (errors.ForeignSite, errors.UnsupportedMediaType)
    if not public:
        yield from _WITH_A_KEY
        yield from _FROM_REDIS
    endpoint = path in ENDPOINTS or (method == "post" and path.startswith("/predictions/"))
    if method == "post" and (endpoint or path == "/jobs"):
        yield from _OF_A_BODY
    if endpoint or path.endswith(("/result", "/events", "/stream")):
        yield errors.StreamReset
        yield from _all(errors.JobFailed)
        yield errors.AnswerTooLarge
    if endpoint or path.startswith("/docs"):
        yield errors.UnknownRoute
    if path.startswith(("/models", "/predictions/")):
        yield from (errors.ModelNotFound, errors.NoWorker)
    if path == "/models/{model}":
        # Of the methods that are refused there.
        yield errors.NotSupported
    if path.startswith("/models") and method == "put":
        yield from (errors.AdminOnly, errors.AutoscalerSilent)
    if path.startswith(("/v1/responses", "/v1/conversations")):
        yield errors.PreviousResponseNotFound
        yield errors.ConversationLocked
        yield errors.QuotaExceeded
    if "{" in path or path == "/v1/responses":
        yield errors.NotFound
    if path.startswith("/v1/responses/"):
        yield errors.StreamReset
    if method == "post" and path.startswith("/v1/conversations"):
        yield errors.BodyTimeout
        yield errors.BodyTooLarge
    if path.endswith(("/retry", "/replay", "/request")):
        yield errors.NotRepeatable
    if path.endswith("/drain"):
        yield errors.WorkerNotReady
    if path.startswith("/autoscale"):
        yield errors.AutoscalerSilent
    if path.startswith("/admin") or path in ADMIN_PATHS:
        yield errors.AdminOnly
    if path.startswith(("/admin/pools/{pool}/", "/admin/workers/")) or path in OPERATOR_PATHS:
        yield from _OF_AN_OPERATION


def descriptions(method: str, path: str, *, public: bool) -> dict[str, str]:
    """Status -> which errors have it, with their codes."""
    found: dict[str, list[str]] = {}
    for kind in errors_of(method, path, public=public):
        line = (kind.__doc__ or "").splitlines()[0]
        found.setdefault(str(kind.status), []).append(f"`{kind.code or kind.type}`: {line}")
    return {status: "\n\n".join(lines) for status, lines in sorted(found.items())}


def _all(kind: Kind) -> Iterator[Kind]:
    yield kind
    for each in kind.__subclasses__():
        yield from _all(each)
