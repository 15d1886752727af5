"""The text and the usage of a job's answer so far, from its log."""

from __future__ import annotations

from shared.job.job import Job
from shared.job.log import Transcript, read_journal
from shared.store.log_parts import LogTooLong, log_parts
from shared.store.queue import Queue

MOST_BYTES = 1 << 19
"""Of a log that is read for this: about 50,000 tokens. Log probabilities are in the log, too."""
MOST_AT_ONCE = 1 << 16


async def read_transcript(queue: Queue, job: Job) -> Transcript | None:
    """The text and the usage; None if the log is too long.

    Raises StreamReset if Redis has lost a part of the log, and StoreError.
    """
    transcript = Transcript.empty()
    try:
        parts = log_parts(queue, job, most_bytes=MOST_BYTES, most_at_once=MOST_AT_ONCE)
        async for entries in parts:
            for entry in entries:
                transcript.add(read_journal(entry.journal, entry.items))
    except LogTooLong:
        return None
    return transcript
