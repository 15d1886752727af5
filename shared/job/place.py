"""A place in a list of jobs: the cursor of a page."""

from __future__ import annotations

from typing import NamedTuple

PLACE = r"^[0-9]{1,18}(-job_[0-9a-f]{27})?$"
"""What `Place.parse` reads."""


class Place(NamedTuple):
    """Behind this job. Newest jobs come first, those of the same microsecond by their id."""

    created_us: int
    job_id: str = ""
    """Empty: behind all jobs that are younger or of that microsecond."""

    @classmethod
    def parse(cls, text: str) -> Place:
        """From what `str` gives. Raises ValueError if it is something else."""
        created_us, _, job_id = text.partition("-")
        return cls(int(created_us), job_id)

    def __str__(self) -> str:
        return f"{self.created_us}-{self.job_id}"
