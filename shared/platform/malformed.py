"""Values from Redis that cannot be read: each is skipped, counted, and logged once."""

from __future__ import annotations

import logging
from collections import OrderedDict

from prometheus_client import Counter

log = logging.getLogger("flotilla.malformed")

_MOST_LOGGED = 1000


class MalformedValues:
    """Remembers which values were logged; the number of those is bounded."""

    def __init__(self, counter: Counter | None = None) -> None:
        """`counter` has one label, the kind of value; None: they are logged only."""
        self._counter = counter
        self._logged: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    def skip(self, kind: str, name: str, error: Exception) -> None:
        """Report a value that was skipped.

        `kind` is what it should have been ("worker", "model", ...), `name` is its key or field.
        """
        if self._counter is not None:
            self._counter.labels(kind).inc()
        reason = repr(error)[:300]
        seen = (kind, name, reason)
        if seen in self._logged:
            self._logged.move_to_end(seen)
            return
        self._logged[seen] = None
        if len(self._logged) > _MOST_LOGGED:
            self._logged.popitem(last=False)
        log.error("skipped a malformed %s, %s: %s", kind, name, reason)
