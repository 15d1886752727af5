"""Names of adapter queues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.fleet.pool import pool_name
from shared.job.lanes import adapter_queue, is_adapter_queue, pool_of


@given(model=st.text(min_size=1), adapter=st.text(min_size=1), other=st.text(min_size=1))
def test_a_queue_belongs_to_its_pool_and_its_adapter_only(
    model: str, adapter: str, other: str
) -> None:
    pool = pool_name(model)
    queue = adapter_queue(pool, adapter)
    assert pool_of(queue) == pool_of(pool) == pool
    assert is_adapter_queue(queue, pool)
    assert not is_adapter_queue(pool, pool)
    assert (adapter_queue(pool, other) == queue) == (other == adapter)
    assert queue.isascii()
    assert not set(queue) & set(" :{}*")


def test_it_is_readable() -> None:
    assert adapter_queue("llama", "team/SQL v2").startswith("llama+team-sql-v2-")
