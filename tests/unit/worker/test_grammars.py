"""A grammar is tried in a fork, which may do anything."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import time
from typing import Any

import pytest

from worker.engines.vllm import grammars
from worker.engines.vllm.grammars import _try


def attempt(grammar: dict[str, Any], engine_backend: str) -> tuple[str, str]:
    """A compiler whose behaviour is the grammar's text."""
    what = grammar["regex"]
    while what == "hang":
        pass
    if what == "sleep":
        time.sleep(60)
    if what == "crash":
        faulthandler.disable()  # it would print all threads first
        ctypes.string_at(0)
    if what == "exit":
        os._exit(3)
    if what == "memory":
        bytearray(1 << 30)
    return ("it is wrong" if what == "wrong" else ""), engine_backend or "own"


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "_SECONDS", 1.0)
    monkeypatch.setattr(grammars, "_STUCK_S", 3)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("right", ""),
        ("wrong", "it is wrong"),
        ("crash", "failed"),
        ("exit", "failed"),
        ("memory", "memory"),
        ("hang", "1 s"),
        ("sleep", "1 s"),
    ],
)
def test_whatever_a_grammar_does_there_is_an_answer(text: str, error: str) -> None:
    for backend in ("", "that of the engine"):
        found, library = _try({"regex": text}, backend, attempt)
        assert (found == error) if text in ("right", "wrong") else (error in found)
        assert library == (backend or "own" if text in ("right", "wrong") else "")
