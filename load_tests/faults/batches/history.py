"""What Redis' append-only file tells of jobs that are deleted by now: how often each completed.

Maintenance has a Redis that was started write its file anew, so what it has written before is kept
by hard links, which are made before each of its ends. A Redis that is killed while it writes a
transaction may leave its beginning in the file (7.0.15: at the next start it cuts off only a last
command that is not complete). Redis has not answered such a transaction, so it does not count.
"""

from __future__ import annotations

import contextlib
import mmap
import re
from collections import Counter
from pathlib import Path

_KEPT = "kept"
_TOKENS = re.compile(
    rb"\*1\r\n\$(?:5\r\n(MULTI)|4\r\n(EXEC))\r\n"
    rb"|:job:(job_[0-9a-f]+)\r\n\$5\r\nstate\r\n\$9\r\ncompleted\r\n"
)


def keep(redis_folder: Path) -> None:
    """Keep what Redis writes to its files, as they are now, whatever it does with them."""
    kept = redis_folder / _KEPT
    kept.mkdir(exist_ok=True)
    for path in (redis_folder / "appendonlydir").glob("*.incr.aof"):
        with contextlib.suppress(FileExistsError, FileNotFoundError):  # deleted just now
            (kept / path.name).hardlink_to(path)


def completions(redis_folder: Path) -> Counter[str]:
    """Count for each job how often it came to its end with an answer."""
    keep(redis_folder)
    found: Counter[str] = Counter()
    for path in (redis_folder / _KEPT).iterdir():
        if path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                found += _completions(data)
    return found


def _completions(data: mmap.mmap | bytes) -> Counter[str]:
    found: Counter[str] = Counter()
    transaction: list[str] = []
    for match in _TOKENS.finditer(data):
        _, ends, job_id = match.groups()
        if job_id:
            transaction.append(job_id.decode())
            continue
        if ends:
            found.update(transaction)
        transaction = []
    return found
