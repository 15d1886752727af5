"""Grammars are tried in another process, which survives all of them."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import faulthandler
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.harness.waiting import DEADLINE_S, eventually
from worker.engines.vllm import trials
from worker.engines.vllm.grammar_check import Compile, GrammarChecker, GrammarRefused
from worker.engines.vllm.trial_process import Limits
from worker.engines.vllm.trials import AT_ONCE, MAX_WAITING, TrialsBusy

TIMEOUT_S = 1.0


def count(folder: Path) -> int:
    return len(list(folder.iterdir()))


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@dataclass
class Grammar:
    """As vLLM's StructuredOutputsParams."""

    regex: str
    _backend: str | None = None


def prepare() -> Compile:
    """A compiler whose behaviour is the grammar's text."""
    tried = 0

    def attempt(grammar: dict[str, Any], engine_backend: str) -> tuple[str, str]:
        nonlocal tried
        tried += 1
        assert grammar.keys() == {"regex"}
        what = grammar["regex"]
        if what == "wrong":
            return "it is wrong", ""
        if what.startswith("mark"):
            Path(what.split()[1]).touch()
            time.sleep(60)
        if what.startswith("sleep"):
            time.sleep(60)
        while what.startswith("hang"):
            pass
        if what == "crash":
            faulthandler.disable()  # it would print all threads first
            ctypes.string_at(0)
        if what == "exit":
            os._exit(3)
        if what == "raise":
            raise KeyError("x")
        if what == "memory":
            bytearray(1 << 30)
        if what == "backend":
            return engine_backend or "none yet", ""
        return "", f"library {tried}"

    return attempt


@pytest_asyncio.fixture
async def checker() -> AsyncIterator[GrammarChecker]:
    checker = GrammarChecker(Limits(TIMEOUT_S, 64 << 20))
    await checker.start(prepare)
    yield checker
    checker.close()


async def refusal(checker: GrammarChecker, text: str, tenant: str = "") -> str:
    with pytest.raises(GrammarRefused) as refused:
        await checker.check(Grammar(text), tenant)
    return str(refused.value)


async def test_grammars_that_can_be_used_and_one_that_is_wrong(checker: GrammarChecker) -> None:
    await checker.check(Grammar("a"))
    assert await refusal(checker, "wrong") == "it is wrong"
    await asyncio.gather(*(checker.check(Grammar(f"a{i}")) for i in range(20)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("crash", "failed"),
        ("exit", "failed"),
        ("raise", "failed"),
        ("memory", "memory"),
        ("hang", "1 s"),
        ("sleep", "1 s"),
    ],
)
async def test_a_grammar_that_ends_its_process_or_never_ends(
    checker: GrammarChecker, text: str, reason: str
) -> None:
    assert reason in await refusal(checker, text)
    await checker.check(Grammar("a"))


async def test_results_are_kept(checker: GrammarChecker) -> None:
    async with asyncio.timeout(DEADLINE_S):  # without what is kept, it would take twice as long
        for _ in range(int(2 * DEADLINE_S / TIMEOUT_S)):
            assert "1 s" in await refusal(checker, "hang")


async def test_grammars_that_never_end_do_not_hold_up_others_for_long(
    checker: GrammarChecker,
) -> None:
    hanging = [asyncio.create_task(refusal(checker, f"hang {i}")) for i in range(AT_ONCE - 1)]
    await checker.check(Grammar("a"))
    assert not hanging[0].done()
    await asyncio.gather(*hanging, *(refusal(checker, f"hang, too {i}") for i in range(AT_ONCE)))


async def test_the_engine_uses_the_library_of_its_first_grammar(checker: GrammarChecker) -> None:
    assert await refusal(checker, "backend") == "none yet"
    await checker.check(Grammar("a"))
    checker.forget()
    assert await refusal(checker, "backend") == "library 1"


async def test_once_the_process_has_ended_new_grammars_are_refused(
    checker: GrammarChecker, caplog: pytest.LogCaptureFixture
) -> None:
    await checker.check(Grammar("a"))
    waiting = asyncio.create_task(checker.check(Grammar("hang")))
    await asyncio.sleep(0)
    os.kill(checker.trials.pid, signal.SIGKILL)
    with pytest.raises(TrialsBusy):
        await waiting
    with pytest.raises(TrialsBusy):
        await checker.check(Grammar("b"))
    await checker.check(Grammar("a"))
    assert "has ended" in caplog.text


@pytest.mark.parametrize("call", ["fork", "pipe"])
async def test_a_grammar_for_which_there_is_no_child_is_refused_and_others_are_tried(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real, left = getattr(os, call), 3

    def limited() -> Any:
        nonlocal left
        left -= 1
        if left in {0, 1}:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return real()

    def prepare_with_limit() -> Compile:
        monkeypatch.setattr(os, call, limited)  # in the process that tries alone
        return prepare()

    checker = GrammarChecker(Limits(TIMEOUT_S, 64 << 20))
    await checker.start(prepare_with_limit)
    try:
        await checker.check(Grammar("a"))
        for _ in range(2):
            with pytest.raises(TrialsBusy):
                await checker.check(Grammar("b"))
        await checker.check(Grammar("b"))
    finally:
        checker.close()


async def test_without_a_process_vllm_alone_checks() -> None:
    await GrammarChecker(Limits(TIMEOUT_S, 64 << 20)).check(Grammar("wrong"))


async def test_a_cancelled_job_leaves_the_check_to_others(checker: GrammarChecker) -> None:
    first = asyncio.create_task(checker.check(Grammar("hang")))
    second = asyncio.create_task(refusal(checker, "hang"))
    await asyncio.sleep(0.05)
    first.cancel()
    assert "1 s" in await second


async def test_a_grammar_that_gets_no_turn_in_time_can_be_sent_again(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await checker.check(Grammar("a"))
    monkeypatch.setattr(trials, "WAIT_S", 0.01)
    with pytest.raises(TrialsBusy):
        await checker.check(Grammar("hang"))


async def test_slow_grammars_of_one_tenant_delay_those_of_another_by_one_compile(
    checker: GrammarChecker,
) -> None:
    slow = [asyncio.create_task(refusal(checker, f"hang {i}", "a")) for i in range(48)]
    await asyncio.sleep(0)
    tried = asyncio.create_task(checker.check(Grammar("small"), "b"))
    await asyncio.wait({*slow, tried}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait_for(tried, 60)  # it is tried as soon as one of them has ended
    assert sum(task.done() for task in slow) <= 2 * AT_ONCE
    for task in slow:
        task.cancel()


async def test_what_nobody_waits_for_is_not_tried(checker: GrammarChecker, tmp_path: Path) -> None:
    slow = [asyncio.create_task(refusal(checker, f"mark {tmp_path}/{i}")) for i in range(48)]

    async def running() -> bool:
        return count(tmp_path) == AT_ONCE

    await eventually(running, "as many as may run at once")
    for task in slow:
        task.cancel()
    await checker.check(Grammar("small"))
    assert count(tmp_path) == AT_ONCE
    assert children_of(checker.trials.pid) == []


async def test_a_tenant_has_a_bounded_number_of_grammars_waiting(checker: GrammarChecker) -> None:
    slow = [
        asyncio.create_task(refusal(checker, f"hang {i}", "a"))
        for i in range(AT_ONCE + MAX_WAITING)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(TrialsBusy):
        await checker.check(Grammar("one more"), "a")
    await checker.check(Grammar("small"), "b")
    for task in slow:
        task.cancel()


async def test_what_the_worker_had_open_closes_no_answer() -> None:
    connections = [socket.socketpair() for _ in range(20)]

    def prepare_and_collect() -> Compile:
        lowest = min(each.fileno() for pair in connections for each in pair)
        while os.open(os.devnull, os.O_RDONLY) < lowest:
            pass  # so that an answer's pipe gets one of their numbers, if they are free

        def attempt(grammar: dict[str, Any], engine_backend: str) -> tuple[str, str]:
            connections.clear()  # as the garbage collector may do at any time
            return "", ""

        return attempt

    checker = GrammarChecker(Limits(TIMEOUT_S, 64 << 20))
    await checker.start(prepare_and_collect)
    try:
        await asyncio.gather(*(checker.check(Grammar(f"{n}")) for n in range(8)))
    finally:
        checker.close()
        for pair in connections:
            for each in pair:
                each.close()
