"""A class that inherits a Protocol may lack a method, which then returns None."""

from __future__ import annotations

from shared.store.interface import Store
from shared.store.redis.job_queue import JobQueue


def test_the_job_queue_has_every_method_of_a_store() -> None:
    named = {name for name in vars(Store) if not name.startswith("_")}
    own = {name for kind in JobQueue.__mro__ if kind is not Store for name in vars(kind)}
    assert named - own == set()
    assert len(named) > 20, "the methods of a store are not found"
