"""What an API key may do."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    """A right of a key; none contains another."""

    INFER = "infer"
    """Call models, use responses and conversations, and read and cancel the jobs of its calls."""
    JOBS = "jobs"
    """Jobs, batches, files and webhooks of its tenant."""
    PRIORITY = "priority"
    """Use the lane `priority` (`service_tier: priority`, which else runs as `default`)."""
    ADMIN_READ = "admin:read"
    """See the fleet and what concerns other tenants."""
    ADMIN_WRITE = "admin:write"
    """Change the fleet, and make keys of any tenant with any scopes."""


TENANT_SCOPES = frozenset({Scope.INFER, Scope.JOBS})
"""Of a key in FLOTILLA_API_KEYS, and of a new one that names none."""
ALL_SCOPES = frozenset(Scope)
"""Of a key in FLOTILLA_ADMIN_KEYS."""
