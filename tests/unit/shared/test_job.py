"""A job's id."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.job.job import new_job_id, shard_of

ID = "job_00a" + "0123456789abcdef01234567"


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 4096))
def test_a_new_id_names_a_shard(shards: int) -> None:
    job_id = new_job_id(shards)
    shard = shard_of(job_id)
    assert shard is not None
    assert 0 <= shard < shards
    assert len(job_id) == 31


def test_ids_are_not_made_twice() -> None:
    assert len({new_job_id(1) for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("text", "shard"),
    [
        (ID, 10),
        ("job_fff" + "0" * 24, 4095),
        ("", None),
        ("job_", None),
        (ID[:-1], None),
        (ID + "0", None),
        (ID.upper(), None),
        (" " + ID, None),
        (ID + " ", None),
        (ID[:-1] + "g", None),
        ("job_00٣" + "0" * 24, None),
        ("job_{0}" + "0" * 24, None),
        ("job_00a" + "0" * 23 + "*", None),
        ("job_00a" + "0" * 23 + "\x00", None),
        ("../../etc/passwd", None),
        ("job_-01" + "0" * 24, None),
        ("job_0x1" + "0" * 24, None),
        ("job_00a" + "0" * 100_000, None),
    ],
)
def test_only_an_id_names_a_shard(text: str, shard: int | None) -> None:
    assert shard_of(text) == shard


@settings(deadline=None, derandomize=True)
@given(st.text())
def test_no_other_text_is_an_id(text: str) -> None:
    assert shard_of(text) is None
