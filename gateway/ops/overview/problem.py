"""One problem of the fleet, and what mends it."""

from __future__ import annotations

from typing import Any, NamedTuple

WARNING, PROBLEM = "warning", "problem"
_RUNBOOKS = "compose/observability/runbooks.md#"


class Action(NamedTuple):
    """A request that mends something, as a button can offer it."""

    text: str
    method: str
    path: str
    body: dict[str, Any]


class Problem(NamedTuple):
    """Something that is wrong. `since`: Unix seconds; None: from the first time it is found."""

    kind: str
    level: str
    sentence: str
    since: float | None = None
    pool: str = ""
    worker: str = ""
    action: Action | None = None
    runbook: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The same problem found again has the same key."""
        return self.kind, self.pool, self.worker

    def to_object(self) -> dict[str, Any]:
        """As the API shows it."""
        fields = self._asdict()
        fields["action"] = self.action._asdict() if self.action else None
        fields["runbook"] = _RUNBOOKS + self.runbook if self.runbook else ""
        return fields
