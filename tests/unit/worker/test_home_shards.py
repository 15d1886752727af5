"""Which shards are a worker's homes."""

from __future__ import annotations

import pytest

from worker.core.home_shards import homes


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize("n_workers", range(1, 16))
def test_every_shard_has_a_worker_and_the_workers_have_about_as_many(
    n_workers: int, shards: int
) -> None:
    workers = [f"w{n}" for n in range(n_workers)]
    own = {worker: homes(worker, workers, shards) for worker in workers}
    of_shard = [sum(shard in each for each in own.values()) for shard in range(shards)]
    counts = of_shard if n_workers >= shards else [len(each) for each in own.values()]
    assert min(of_shard) >= 1
    assert min(len(each) for each in own.values()) >= 1
    assert max(counts) - min(counts) <= 1
    assert n_workers < shards or all(len(each) == 1 for each in own.values())


def test_a_worker_that_is_not_registered_yet_counts_itself() -> None:
    assert homes("w2", [], 3) == {0, 1, 2}
    assert homes("w2", ["w1", "w3"], 3) == {1}
