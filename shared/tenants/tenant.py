"""A tenant: whose jobs, files and keys are its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from shared.tenants.api_key import ApiKey
from shared.tenants.scopes import Scope

DEFAULT_TENANT = "default"
"""The tenant of all requests if no keys are configured."""


class Tenant(NamedTuple):
    """A tenant, and how many keys it has."""

    name: str
    keys: int
    operator: bool
    """One of its keys may change the fleet."""


def tenants_with(keys: Iterable[ApiKey]) -> tuple[Tenant, ...]:
    """The tenants that these keys belong to, by name."""
    found = list(keys)
    numbers = Counter(key.tenant for key in found)
    operators = {key.tenant for key in found if Scope.ADMIN_WRITE in key.scopes}
    return tuple(Tenant(name, numbers[name], name in operators) for name in sorted(numbers))
