"""Finds ids that occur twice among millions, with five bytes for each."""

from __future__ import annotations

from collections.abc import Iterator

_PARTS = 256
_BYTES = 5
_MASK = (1 << 8 * _BYTES) - 1


class Duplicates:
    """48 bits of each id's hash, in parts by the lowest eight. Different ids may have the same, so
    ids that are found are only suspects: the caller compares them."""

    def __init__(self) -> None:
        self._parts = [bytearray() for _ in range(_PARTS)]

    def add(self, text: str) -> None:
        """Note an id."""
        number = hash(text)
        self._parts[number & 255] += (number >> 8 & _MASK).to_bytes(_BYTES)

    def suspects(self) -> Iterator[set[int]]:
        """`key` of the ids that may be there twice, those of one part at a time: about 0.7 us for
        each id that was added. A part is forgotten then."""
        for low, part in enumerate(self._parts):
            found, seen = set(), set()
            for at in range(0, len(part), _BYTES):
                high = bytes(part[at : at + _BYTES])
                if high in seen:
                    found.add(int.from_bytes(high) << 8 | low)
                seen.add(high)
            self._parts[low] = bytearray()
            yield found


def key(text: str) -> int:
    """What `suspects` has of an id; the same only within this process."""
    number = hash(text)
    return (number >> 8 & _MASK) << 8 | number & 255
