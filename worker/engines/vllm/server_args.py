"""Arguments that only vLLM's own server uses: those that are refused or ignored here. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_KEYS = "clients' keys are the gateway's: set FLOTILLA_API_KEYS for it, and leave this out"
_TLS = "workers open no port for clients: put a proxy with TLS in front of the gateway"
REFUSED = {
    "api_key": _KEYS,
    "ssl_keyfile": _TLS,
    "ssl_certfile": _TLS,
    "ssl_ca_certs": _TLS,
    "ssl_cert_reqs": _TLS,
    "ssl_ciphers": _TLS,
    "enable_ssl_refresh": _TLS,
}
"""Argument -> what to do instead. An operator who sets one of these relies on it."""

_ADDRESS = "workers open no port for clients; the gateway's is FLOTILLA_HOST and FLOTILLA_PORT"
_ORIGINS = "the gateway has no CORS: pages of other sites can't read its answers"
_LOG = "the gateway's log of requests is FLOTILLA_ACCESS_LOG"
_HEADERS = "the gateway's limit is 32 KiB"
_PROCESSES = "start more workers instead"
IGNORED = {
    "host": _ADDRESS,
    "port": _ADDRESS,
    "uds": _ADDRESS,
    "grpc_port": _ADDRESS,
    "root_path": "have the proxy in front of the gateway remove the path",
    "allowed_origins": _ORIGINS,
    "allowed_methods": _ORIGINS,
    "allowed_headers": _ORIGINS,
    "allow_credentials": _ORIGINS,
    "uvicorn_log_level": _LOG,
    "disable_uvicorn_access_log": _LOG,
    "disable_access_log_for_endpoints": _LOG,
    "enable_request_id_headers": "the gateway sends `x-request-id` with each answer",
    "h11_max_incomplete_event_size": _HEADERS,
    "h11_max_header_count": _HEADERS,
    "api_server_count": _PROCESSES,
    "headless": _PROCESSES,
}
"""Argument -> what has the effect here."""


def set_in_vain(table: dict[str, str], args: Any, default: Callable[[str], Any]) -> list[str]:
    """A sentence for each argument of the table that is not as `default` of its name has it."""
    return [
        f"--{name.replace('_', '-')} has no effect in a worker: {instead}"
        for name, instead in table.items()
        if hasattr(args, name) and getattr(args, name) != default(name)
    ]


MEDIA_URLS = "media_urls"
"""The permission for URLs of images, audio and video, as field_policy.py has it."""
NO_DOMAIN = "no-domain.invalid"
"""A name that no URL has (RFC 2606)."""


def with_media_domains(argv: list[str], *, urls_allowed: bool) -> list[str]:
    """The arguments, with which vLLM fetches no URL unless requests may have some.

    `data:` URLs have no domain. What an operator has set himself stays.
    """
    name = "--allowed-media-domains"
    own = any(word.partition("=")[0].replace("_", "-") == name for word in argv)
    return argv if urls_allowed or own else [*argv, name, NO_DOMAIN]
