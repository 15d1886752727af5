"""A read is repeated while there is no connection, and no longer than it may take."""

from __future__ import annotations

import pytest

from shared.store import answers as module
from shared.store.answers import read_again
from shared.store.errors import StoreError, StoreRefused, StoreTimeout, StoreUnavailable


@pytest.mark.parametrize(
    ("errors", "raised", "reads"),
    [
        ([], None, 1),
        ([StoreUnavailable("lost")] * 3, None, 4),
        ([StoreTimeout("no answer")], StoreTimeout, 1),
        ([StoreUnavailable("lost"), StoreRefused("no")], StoreRefused, 2),
    ],
)
async def test_which_errors_are_tried_again(
    errors: list[StoreError], raised: type[StoreError] | None, reads: int
) -> None:
    left, n_reads = list(errors), 0

    async def read() -> str:
        nonlocal n_reads
        n_reads += 1
        if left:
            raise left.pop(0)
        return "reply"

    if raised is None:
        assert await read_again(read) == "reply"
    else:
        with pytest.raises(raised):
            await read_again(read)
    assert n_reads == reads


async def test_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_S", 0.2)

    async def read() -> str:
        raise StoreUnavailable("lost")

    with pytest.raises(StoreUnavailable):
        await read_again(read)
