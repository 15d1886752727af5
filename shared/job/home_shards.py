"""Which shards a worker's jobs come from as long as these have any: its homes. Pure.

On a cluster a call to each shard is a call to another server. With homes a worker's output goes to
one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

Homes = Mapping[str, Collection[int]]
"""Worker id -> its home shards; empty for a worker without any yet."""


def balanced(homes: Homes, shards: int) -> dict[str, tuple[int, ...]]:
    """The homes of the same workers, changed as little as needed.

    With at least as many workers as shards each worker has one home, else each shard one worker;
    their numbers differ by one at most. In the first case a worker that comes moves no other, and
    one that goes at most one. Equal arguments give equal results: each worker finds its own.
    """
    if not homes:
        return {}
    if len(homes) >= shards:
        return _one_home_each(homes, shards)
    return _one_worker_each(homes, shards)


def _one_home_each(homes: Homes, shards: int) -> dict[str, tuple[int, ...]]:
    at: list[list[str]] = [[] for _ in range(shards)]

    def fewest(among: Collection[int]) -> int:
        return min(among, key=lambda shard: (len(at[shard]), shard))

    known = {worker: [s for s in own if s < shards] for worker, own in sorted(homes.items())}
    for worker, own in known.items():
        if own:
            at[fewest(own)].append(worker)
    for worker, own in known.items():
        if not own:
            at[fewest(range(shards))].append(worker)
    while True:
        emptiest = fewest(range(shards))
        fullest = max(range(shards), key=lambda shard: (len(at[shard]), shard))
        if len(at[fullest]) - len(at[emptiest]) < 2:
            return {worker: (shard,) for shard, workers in enumerate(at) for worker in workers}
        at[emptiest].append(at[fullest].pop())


def _one_worker_each(homes: Homes, shards: int) -> dict[str, tuple[int, ...]]:
    workers = sorted(homes)
    of: dict[str, list[int]] = {worker: [] for worker in workers}
    free = set(range(shards))
    for worker in workers:
        of[worker] = sorted(free.intersection(homes[worker]))
        free.difference_update(of[worker])

    def fewest() -> str:
        return min(workers, key=lambda worker: (len(of[worker]), worker))

    for shard in sorted(free):
        of[fewest()].append(shard)
    while True:
        fullest = max(workers, key=lambda worker: (len(of[worker]), worker))
        if len(of[fullest]) - len(of[fewest()]) < 2:
            return {worker: tuple(sorted(own)) for worker, own in of.items()}
        of[fewest()].append(of[fullest].pop())
