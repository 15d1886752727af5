"""`--tensor-parallel-size auto`."""

from __future__ import annotations

import pytest

from worker.engines.vllm.gpu_args import with_gpus


@pytest.mark.parametrize(
    ("argv", "gpus", "expected"),
    [
        (["--tensor-parallel-size", "auto"], 4, ["--tensor-parallel-size", "4"]),
        (["--seed", "1", "-tp", "auto", "-x"], 2, ["--seed", "1", "-tp", "2", "-x"]),
        (["--tensor-parallel-size=auto"], 8, ["--tensor-parallel-size", "8"]),
        (["-tp", "auto", "-pp", "2"], 8, ["-tp", "4", "-pp", "2"]),
        (["-tp", "auto", "-pp=4"], 2, ["-tp", "1", "-pp", "4"]),
        (["-tp", "auto"], 0, ["-tp", "1"]),
    ],
)
def test_auto_is_the_number_of_gpus(argv: list[str], gpus: int, expected: list[str]) -> None:
    assert with_gpus(argv, lambda: gpus) == expected


@pytest.mark.parametrize(
    "argv", [[], ["-tp", "2"], ["--dtype", "auto"], ["--tensor-parallel-size"], ["--x=auto"]]
)
def test_everything_else_stays_and_nothing_is_asked(argv: list[str]) -> None:
    def fail() -> int:
        raise AssertionError

    assert with_gpus(argv, fail) == argv
