"""The tenants that this gateway has keys of."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from gateway.gateway_settings import GatewaySettings


class Tenant(NamedTuple):
    """A tenant, and how many keys it has."""

    name: str
    keys: int
    operator: bool
    """One of its keys is an operator's."""


def tenants_in(settings: GatewaySettings, without_keys: str) -> tuple[Tenant, ...]:
    """All tenants, by name; `without_keys`: the only one where no keys are configured.

    Raises SettingsError if the file with the keys can't be read.
    """
    tenants, admins = settings.tenants_by_key(), settings.admins()
    if not tenants:
        return (Tenant(without_keys, 0, True),)
    keys = Counter(tenants.values())
    operators = {tenants[digest] for digest in admins}
    return tuple(Tenant(name, keys[name], name in operators) for name in sorted(keys))
