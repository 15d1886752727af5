"""Who is calling: an API key stands for a tenant. Keys are kept and compared as hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from shared.errors import Unauthorized

ANYBODY = "default"
"""The tenant of everyone where no keys are configured."""


def tenant_of(authorizations: list[bytes], tenants: Mapping[str, str]) -> str:
    """The tenant of a request with these `authorization` headers. Raises Unauthorized.

    `tenants` maps the SHA-256 of a key to its tenant; looking up a hash takes no longer for a key
    that is nearly right.
    """
    if not tenants:
        return ANYBODY
    if len(authorizations) != 1:
        raise Unauthorized("Send your API key as `Authorization: Bearer <key>`, once.")
    scheme, _, key = authorizations[0].partition(b" ")
    tenant = tenants.get(hashlib.sha256(key.strip()).hexdigest())
    if scheme.lower() != b"bearer" or tenant is None:
        raise Unauthorized("This API key is not known here.")
    return tenant
