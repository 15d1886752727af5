"""`--tensor-parallel-size auto`: as many GPUs as this worker has. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

_TENSOR = ("--tensor-parallel-size", "-tp")
_PIPELINE = ("--pipeline-parallel-size", "-pp")
_AUTO = "auto"


def with_gpus(argv: Sequence[str], gpus: Callable[[], int]) -> list[str]:
    """The arguments with the number of GPUs in place of `auto`; `gpus` is called only for it.

    What pipeline parallelism takes is left out: both together use all GPUs.
    """
    words = [part for word in argv for part in _parts(word)]
    for at, word in enumerate(words[:-1]):
        if word in _TENSOR and words[at + 1] == _AUTO:
            size = max(1, gpus() // _pipeline_size(words))
            return [*words[: at + 1], str(size), *words[at + 2 :]]
    return list(argv)


def _parts(word: str) -> list[str]:
    name, equals, value = word.partition("=")
    return [name, value] if equals and name in (*_TENSOR, *_PIPELINE) else [word]


def _pipeline_size(words: Sequence[str]) -> int:
    for name, value in pairwise(words):
        if name in _PIPELINE and value.isdigit():
            return max(1, int(value))
    return 1
