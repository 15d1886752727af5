"""What a store of jobs must do: a queue with lanes, leases and fences, and a log of tokens per job.

Its one implementation is `shared/store/redis`. Values of `shared/job` go in and come out.
"""

from __future__ import annotations


class StoreError(Exception):
    """The store could not carry out a call."""


class StoreUnavailable(StoreError):
    """A server can't be reached now; it may have carried out the call. The same call may succeed
    later."""


class StoreTimeout(StoreUnavailable):
    """A server does not answer."""


class StoreRefused(StoreError):
    """A server has answered with an error."""


class StoreUnwritable(StoreRefused):
    """A server refuses writes for now: its memory or its disk is full, it loads its data, or it is
    a replica. Nothing has happened; the same call may succeed later."""
