"""Compares the ledger of use with the logs of the jobs: each job once, with the tokens it has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from load_tests.oracle.stored_job import StoredJob
from shared.job.log import Entry, prompt_tokens_in, tokens_in
from shared.store.ended import Ended, EndedStreams, Owner, Reader
from shared.store.queue import Queue
from shared.store.servers import Servers
from shared.tenants.rate_limits import estimate

_AT_ONCE = 10_000


class Logged(NamedTuple):
    """What a log has of a job that has ended, and whose it is."""

    owner: Owner
    prompt_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, stored: StoredJob) -> Logged:
        """That of a job as Redis holds it."""
        job = stored.job
        prompt, output = _tokens(stored.answer)
        if stored.begun_bytes and not (prompt or output):
            prompt = estimate(stored.begun_bytes, 0, 0)
        return cls(Owner(job.tenant, job.key, job.model), prompt, output)


async def ledger_errors(url: str, shards: int, logged: Mapping[str, Logged]) -> list[str]:
    """Return what is wrong with the ledger. No maintenance process may run. Raises StoreError."""
    entries: list[Ended] = []
    async with Servers(url, shards) as servers:
        queue = Queue(servers)
        for shard in range(shards):
            after = ""
            while found := await EndedStreams(queue, Reader.USAGE).read(shard, after, _AT_ONCE):
                entries += found
                after = found[-1].entry
        await queue.close()
    return compare(entries, logged)


def compare(entries: Iterable[Ended], logged: Mapping[str, Logged]) -> list[str]:
    """Return what is wrong, in words. Pure. Entries of other jobs than these are left out."""
    of_jobs: dict[str, list[Ended]] = defaultdict(list)
    for entry in entries:
        of_jobs[entry.id].append(entry)
    twice = (job for job, found in of_jobs.items() if len(found) > 1)
    errors = [f"{job} is in the ledger more than once" for job in twice]
    for job, right in logged.items():
        for entry in of_jobs[job][:1]:
            if entry.owner != right.owner:
                errors.append(f"{job} counts for {entry.owner}, not {right.owner}")
            counted = (entry.prompt_tokens, entry.output_tokens)
            if entry.prompt_tokens is not None and counted != right[1:]:
                errors.append(f"{job} counts {counted} tokens, its log has {right[1:]}")
        if not of_jobs[job]:
            errors.append(f"{job} is not in the ledger")
    return errors


def _tokens(entries: Sequence[Entry]) -> tuple[int, int]:
    return (
        sum(prompt_tokens_in(entry.journal) for entry in entries),
        sum(tokens_in(entry.journal) for entry in entries),
    )
