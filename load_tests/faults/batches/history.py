"""What Redis' append-only file tells of jobs that are deleted by now: how often each completed.

Nothing may have rewritten the file. What a killed Redis had written in part is cut off at its next
start, so each end in the file is one that lasted.
"""

from __future__ import annotations

import mmap
import re
from collections import Counter
from pathlib import Path

_COMPLETED = re.compile(rb":job:(job_[0-9a-f]+)\r\n\$5\r\nstate\r\n\$9\r\ncompleted\r\n")


def completions(redis_folder: Path) -> Counter[str]:
    """Count for each job how often it came to its end with an answer."""
    found: Counter[str] = Counter()
    for path in redis_folder.rglob("*.aof"):
        if path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                found.update(each[1].decode() for each in _COMPLETED.finditer(data))
    return found
