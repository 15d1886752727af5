"""Which errors of Flotilla's own each operation can answer, for the API's description.

Errors of vLLM are passed on with their own status, so the description has `4XX` and `5XX` too.
"""

from __future__ import annotations

from collections.abc import Iterator

from shared.api import errors
from shared.api.endpoints import ENDPOINTS
from shared.api.errors import FlotillaError

Kind = type[FlotillaError]

_EVERYWHERE: tuple[Kind, ...] = (
    errors.BadRequest,
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
    errors.UnsupportedMediaType,
    errors.IdempotencyKeyReused,
    errors.ModelNotFound,
    errors.NoWorker,
    errors.QueueFull,
)


def errors_of(method: str, path: str, *, public: bool) -> Iterator[Kind]:
    """The errors of one operation. `public`: it needs no key."""
    yield from _EVERYWHERE
    if not public:
        yield from _WITH_A_KEY
        yield from _FROM_REDIS
    endpoint = path in ENDPOINTS
    if method == "post" and (endpoint or path == "/jobs"):
        yield from _OF_A_BODY
    if endpoint or path.endswith(("/result", "/events", "/stream")):
        yield errors.StreamReset
        yield from _all(errors.JobFailed)
    if endpoint:
        yield errors.NotSupported
        yield errors.AnswerTooLarge
    if "{" in path:
        yield errors.NotFound
    if path.endswith(("/retry", "/replay")):
        yield errors.NotRepeatable
    if path.startswith("/autoscale"):
        yield errors.AutoscalerSilent
    if path.startswith("/admin"):
        yield errors.AdminOnly


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
