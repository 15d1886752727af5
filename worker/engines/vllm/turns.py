"""A queue in which tenants take turns; the items of each tenant keep their order."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """The waiting items, by tenant."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()

    def add(self, tenant: str, item: T) -> None:
        """Put it behind all of its tenant."""
        self._waiting.setdefault(tenant, deque()).append(item)

    def take(self) -> T | None:
        """Remove and return what is next; None if nothing waits."""
        if not self._waiting:
            return None
        tenant, items = self._waiting.popitem(last=False)
        item = items.popleft()
        if items:
            self._waiting[tenant] = items  # behind all others
        return item

    def discard(self, tenant: str, item: T) -> None:
        """Remove it if it still waits."""
        items = self._waiting.get(tenant)
        if items is not None and item in items:
            items.remove(item)
            if not items:
                del self._waiting[tenant]

    def waiting(self, tenant: str) -> int:
        """How many of one tenant wait."""
        return len(self._waiting.get(tenant, ()))
