"""A fleet whose operators make API keys while it runs."""

from __future__ import annotations


def bearer(secret: str) -> dict[str, str]:
    """The header of a client with this key."""
    return {"authorization": f"Bearer {secret}"}


KEYS = {"api_keys": "team:s3cret", "admin_keys": "ops:adm1n"}
"""Settings of a gateway: a key of the tenant `team`, and an operator's."""
KEYS_WITHOUT_REDIS = {**KEYS, "keys_without_redis_s": 10}
"""The same, if a key that was known is good for ten seconds when Redis is gone."""
TEAM, OPERATOR = bearer("s3cret"), bearer("adm1n")
