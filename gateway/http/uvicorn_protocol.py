"""What `connection.py` needs of uvicorn's HttpToolsProtocol, which is private; checked at start.

With uvicorn's own class a gateway would have no limits on clients without a key. So it does not
start with a uvicorn that is not as expected.
"""

from __future__ import annotations

from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shared.platform.fast_paths import attributes_missing, parameters_differ
from shared.platform.settings import SettingsError

METHODS = {
    "connection_made": "self transport",
    "connection_lost": "self exc",
    "data_received": "self data",
    "eof_received": "self",
    "on_message_begin": "self",
    "on_headers_complete": "self",
    "on_body": "self body",
    "on_message_complete": "self",
    "on_response_complete": "self",
    "pause_writing": "self",
    "resume_writing": "self",
    "send_400_response": "self msg",
    "_should_upgrade": "self",
    "_unset_keepalive_if_required": "self",
}
"""The methods that are overridden or called, with their parameters."""
_ATTRIBUTES = (
    "app_state client connections cycle flow headers loop parser pipeline server_state "
    "timeout_keep_alive_task transport"
)
_CYCLE_ATTRIBUTES = (
    "body chunked_encoding default_headers disconnected expected_content_length keep_alive "
    "message_event more_body response_complete response_started transport waiting_for_100_continue"
)


def problem(
    protocol: type[Any] = HttpToolsProtocol, cycle: type[Any] = RequestResponseCycle
) -> str:
    """Why uvicorn's classes can't be extended as `connection.py` does; empty if they can."""
    for name, parameters in METHODS.items():
        method = getattr(protocol, name, None)
        if method is None:
            return f"{protocol.__qualname__} has no {name}"
        if differs := parameters_differ(method, parameters):
            return differs
    return attributes_missing(protocol, _ATTRIBUTES.split()) or attributes_missing(
        cycle, _CYCLE_ATTRIBUTES.split()
    )


def refuse_unknown_protocol() -> None:
    """Raise SettingsError if the installed uvicorn can't be used."""
    if found := problem():
        raise SettingsError(
            f"uvicorn {uvicorn.__version__} can't be used, as limits on clients would not work: "
            f"{found}; install a version that Flotilla's requirements allow"
        )
