"""Which scope each route needs: the only place that says so, for every route of every API.

Paths that are in no row are no route; a test compares the table with the application's routes.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.http.page_files import PAGE_FILES
from shared.api.endpoints import ENDPOINTS
from shared.api.operator_actions import PATHS as OPERATOR_PATHS
from shared.job.errors import MissingScope
from shared.tenants.api_key import ApiKey
from shared.tenants.scopes import Scope

_DOCS_FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")
PUBLIC_PATHS = frozenset(
    {"/healthz", "/readyz", "/health", "/ping"}  # probes carry no key
    | {"/openapi.json", "/docs", *(f"/docs/{name}" for name in _DOCS_FILES)}
    | PAGE_FILES.keys()
)
"""Paths that need no key. Every other path needs one if keys are configured, new routes too."""

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_INFER, _JOBS = Scope.INFER, Scope.JOBS


class Needs(NamedTuple):
    """The scopes of a path and of those below it; None: any key will do."""

    read: Scope | None = None
    change: Scope | None = None


_OPERATOR = Needs(Scope.ADMIN_READ, Scope.ADMIN_WRITE)
ROUTES: dict[str, Needs] = {
    **dict.fromkeys(ENDPOINTS, Needs(_INFER, _INFER)),
    **dict.fromkeys(("/v1/responses", "/v1/conversations", "/predictions"), Needs(_INFER, _INFER)),
    **dict.fromkeys(("/jobs", "/v1/files", "/v1/batches"), Needs(_JOBS, _JOBS)),
    **dict.fromkeys(("/v1/webhook_endpoints", "/v1/webhook_event_types"), Needs(_JOBS, _JOBS)),
    **dict.fromkeys(OPERATOR_PATHS, _OPERATOR),
    "/admin": _OPERATOR,
    "/admin/autoscale": Needs(change=Scope.ADMIN_WRITE),
    **dict.fromkeys(("/v1/models", "/models", "/autoscale"), Needs()),
    **dict.fromkeys(("/version", "/load", "/metrics", "/v1/usage"), Needs()),
}
"""The row of the longest path holds."""


def needs_of(path: str) -> Needs | None:
    """The row of a path; None if it is no route."""
    row, end = ROUTES.get(path), len(path)
    while row is None and end > 0:
        end = path.rfind("/", 0, end)
        row = ROUTES.get(path[:end]) if end > 0 else None
    return row


def scopes_of(method: str, path: str) -> tuple[Scope, ...]:
    """The scopes of which a request needs one; empty: any key will do."""
    row = needs_of(path)
    scope = row and (row.read if method in _READS else row.change)
    if scope is None:
        return ()
    # Keys with `infer` make jobs by calls; `own_or_any_job` finds them no others.
    return (scope, _INFER) if _is_of_one_job(method, path) else (scope,)


def _is_of_one_job(method: str, path: str) -> bool:
    """Whether a request reads, resumes or cancels one job."""
    _, first, *rest = path.split("/")
    if first != "jobs":
        return False
    return bool(rest) if method in _READS else method == "POST" and rest[1:] == ["cancel"]


def names_models_later(method: str, path: str) -> bool:
    """Whether a request makes jobs for models that are named in a file, or behind its check."""
    return method == "POST" and path == "/v1/batches"


def check_scope(key: ApiKey, *needed: Scope) -> None:
    """Raise MissingScope unless the key has one of these, if there are any."""
    if needed and key.scopes.isdisjoint(needed):
        has = ", ".join(sorted(key.scopes)) or "none"
        which = " or ".join(needed)
        raise MissingScope(f"This needs an API key with the scope {which}; yours has: {has}.")


def check_route(key: ApiKey, method: str, path: str) -> None:
    """Raise MissingScope unless the key may make this request."""
    check_scope(key, *scopes_of(method, path))
    if key.models and names_models_later(method, path):
        raise MissingScope("A key that is limited to some models can't make batches.")
