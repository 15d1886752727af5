"""The request header `Prefer` (RFC 7240): how long a client waits for its answer.

`respond-async`: 202 with the job at once. `wait=N`: 202 if the answer is not complete after N
seconds. Both: as `wait=N`. Other preferences are ignored, and so are these if they can't be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_PREFERENCE = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')  # without an end quote, up to the end
_WAIT = re.compile(r'wait\s*=\s*"?([0-9]{1,7})"?', re.IGNORECASE)


class Prefer(NamedTuple):
    """The known preferences of a request."""

    respond_async: bool = False
    wait_s: int | None = None
    """None: without `wait`."""

    def applied(self, *, in_time: bool) -> bytes:
        """The header `Preference-Applied` of an answer that is complete `in_time`, or of a 202."""
        names = ["respond-async"] if self.respond_async and not in_time else []
        if self.wait_s is not None:
            names.append(f"wait={self.wait_s}")
        return ", ".join(names).encode()


def parse_prefer(values: Iterable[bytes]) -> Prefer | None:
    """The preferences in all `Prefer` headers of a request; None if none of them is known here."""
    asynchronous, wait_s = False, None
    for value in values:
        for preference in _PREFERENCE.findall(value.decode("latin-1")):
            name = preference.partition(";")[0].strip()
            if name.lower() == "respond-async":
                asynchronous = True
            elif wait_s is None and (match := _WAIT.fullmatch(name)):  # the first one counts
                wait_s = int(match[1])
    return Prefer(asynchronous, wait_s) if asynchronous or wait_s is not None else None
