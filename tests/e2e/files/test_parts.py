"""Ranges of a file's content: two gateways, one folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import openai
import pytest
from openai import OpenAI

from tests.harness.fleet import Stack

LINES = b'{"a": 1}\r\n{"b": "\xc3\xa4"}\n' * 50
MAX_BYTES = 3 << 20


class Fleet(NamedTuple):
    one: OpenAI
    other: OpenAI
    folder: Path


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> Iterator[Fleet]:
    folder = module_stack.folder / "files"
    gateways = [
        module_stack.gateway(
            api_keys="ann:k-ann,ben:k-ben",
            storage_url=str(folder),
            max_file_bytes=MAX_BYTES,
        )
        for _ in range(2)
    ]
    one, other = (
        OpenAI(base_url=f"{gateway.url}/v1", api_key="k-ann", max_retries=0) for gateway in gateways
    )
    with one, other:
        yield Fleet(one, other, folder)


@pytest.fixture(autouse=True)
def _nothing_left(fleet: Fleet) -> Iterator[None]:
    """What a test has stored is deleted, and then no blob is left."""
    yield
    for file in fleet.one.files.list():
        fleet.one.files.delete(file.id)
    assert blobs(fleet) == []


def blobs(fleet: Fleet) -> list[str]:
    """What is in the storage, but for the fleet's id."""
    found = [path for path in fleet.folder.rglob("*") if path.is_file()]
    return sorted(path.name for path in found if path.parent.name != "fleets")


@pytest.mark.parametrize(
    ("asked", "status", "start", "end"),
    [
        ("bytes=0-9", 206, 0, 10),
        ("bytes=5-", 206, 5, None),
        ("bytes=-7", 206, -7, None),
        ("bytes=0-0,5-6", 200, 0, None),
        ("lines=1-2", 200, 0, None),
    ],
)
def test_one_range_is_served(
    fleet: Fleet, asked: str, status: int, start: int, end: int | None
) -> None:
    file = fleet.one.files.create(file=LINES, purpose="batch")
    answer = fleet.other.files.with_raw_response.content(file.id, extra_headers={"range": asked})
    assert (answer.status_code, answer.content) == (status, LINES[start:end])
    if status == 206:
        first = start % len(LINES)
        shown = f"bytes {first}-{first + len(answer.content) - 1}/{len(LINES)}"
        assert answer.headers["content-range"] == shown


def test_a_range_behind_the_end_is_refused(fleet: Fleet) -> None:
    file = fleet.one.files.create(file=LINES, purpose="batch")
    with pytest.raises(openai.APIStatusError) as refused:
        fleet.one.files.content(file.id, extra_headers={"range": f"bytes={len(LINES)}-"})
    assert refused.value.status_code == 416
    assert refused.value.response.headers["content-range"] == f"bytes */{len(LINES)}"
