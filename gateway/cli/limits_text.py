"""Limits as the command line shows them, and what is used of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.cli.output import figure

LIMITS = {
    "requests_per_minute": "requests/min",
    "tokens_per_minute": "tokens/min",
    "concurrent_requests": "concurrent",
    "tokens_per_day": "tokens/day",
    "tokens_per_month": "tokens/month",
}
"""The API's limits, and how they are called here."""
_BUDGETS = {"tokens_per_day": "tokens_today", "tokens_per_month": "tokens_this_month"}
_NONE: Mapping[str, int] = MappingProxyType({})


def limits_text(limits: Mapping[str, int] | None, used: Mapping[str, int] | None = None) -> str:
    """`60 requests/min, 1.2M of 5.0M tokens/day`. `used`: as in the API; None: not known."""
    limits, found = limits or _NONE, []
    for name, word in LIMITS.items():
        if limits.get(name):
            of = f"{figure(used[_BUDGETS[name]])} of " if used and name in _BUDGETS else ""
            found.append(f"{of}{figure(limits[name])} {word}")
    return ", ".join(found) or "no limits"
