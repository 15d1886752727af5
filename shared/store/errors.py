"""What can go wrong in a call to Redis."""

from __future__ import annotations


class StoreError(Exception):
    """The store could not carry out a call."""


class StoreUnavailable(StoreError):
    """A server can't be reached now; it may have carried out the call."""


class StoreTimeout(StoreUnavailable):
    """A server does not answer."""


class StoreRefused(StoreError):
    """A server has answered with an error."""


class StoreUnwritable(StoreRefused):
    """A server refuses writes for now: its memory or its disk is full, it loads its data, or it is
    a replica."""


TRANSIENT = (StoreUnavailable, StoreUnwritable)
"""After these the same call may succeed later."""
