"""Signatures by Standard Webhooks: HMAC-SHA256 over id, time and body."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable

_PREFIX = "whsec_"
_SECRET_BYTES = 32


def new_secret() -> str:
    """`whsec_` and 32 random bytes in base64."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signed_headers(
    webhook_id: str, at_s: float, body: bytes, signing_secrets: Iterable[str]
) -> dict[str, str]:
    """The headers of a delivery; with one signature for each secret, so that one can be replaced.

    `at_s`: Unix time.
    """
    signed = f"{webhook_id}.{int(at_s)}.".encode() + body
    signatures = []
    for secret in signing_secrets:
        key = base64.b64decode(secret.removeprefix(_PREFIX))
        digest = hmac.new(key, signed, hashlib.sha256).digest()
        signatures.append(f"v1,{base64.b64encode(digest).decode()}")
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(int(at_s)),
        "webhook-signature": " ".join(signatures),
    }
