"""Whether a request has an operator's key, for routes that any key may use in part."""

from __future__ import annotations

from fastapi import Request

from gateway.http.auth import Authenticator


def check_operator(request: Request) -> None:
    """Raises AdminOnly unless the request's key is an operator's."""
    authenticator: Authenticator = request.app.state.authenticator
    authenticator.check_admin(request.scope)
