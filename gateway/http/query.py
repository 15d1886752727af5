"""Unknown query parameters of our own routes are refused, so that no filter is silently ignored.

Those of OpenAI, Anthropic and vLLM ignore them, as those APIs do: clients add some to each request.
"""

from __future__ import annotations

from fastapi import Depends, Request
from fastapi.dependencies.utils import get_flat_dependant

from shared.job.errors import BadRequest


def _check(request: Request) -> None:
    route = request.scope["route"]
    known = {field.alias for field in get_flat_dependant(route.dependant).query_params}
    for name in request.query_params:
        if name not in known:
            these = ", ".join(sorted(known)) or "none"
            raise BadRequest(
                f"Unknown query parameter {name[:64]!r}; this route has: {these}.", name[:64]
            )


known_only = Depends(_check)
"""A dependency for a router or a route."""
