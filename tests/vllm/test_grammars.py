"""Grammars are tried in a process of their own before the engine gets them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.client import http
from tests.harness.waiting import wait_for
from tests.vllm.conftest import ServedModel

pytestmark = pytest.mark.vllm

ENDLESS = "((([a-z]{1,100}){1,100}){1,100}){1,100}"


def ask(demo: ServedModel, **structured: Any) -> httpx.Response:
    body = {
        "model": demo.name,
        "messages": [{"role": "user", "content": "What is Flotilla?"}],
        "max_tokens": 20,
        "structured_outputs": structured,
    }
    return http.post(f"{demo.gateway_url}/v1/chat/completions", json=body, timeout=300)


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def trying(demo: ServedModel) -> list[int]:
    """The processes that try grammars."""
    worker = demo.worker.popen.pid
    children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"vllm.grammars" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_a_grammar_that_takes_too_long_is_refused_and_others_are_used(demo: ServedModel) -> None:
    assert text_of(ask(demo, choice=["red", "green"])) in ("red", "green")
    for _ in range(2):
        refused = ask(demo, regex=ENDLESS)
        assert refused.status_code == 400, refused.text
        assert {"message", "type", "param", "code"} <= refused.json()["error"].keys()
    assert ask(demo, regex="([").status_code == 400
    assert text_of(ask(demo, regex="a{3}")) == "aaa"


def test_the_process_that_tries_grammars_may_end_at_any_time(demo: ServedModel) -> None:
    for end in ("b", "c"):
        (process,) = trying(demo)
        os.kill(process, signal.SIGKILL)
        assert text_of(ask(demo, regex=f"a{end}")) == f"a{end}"
        assert trying(demo) != [process]
    assert demo.worker.ready()
    wait_for(lambda: len(trying(demo)) == 1, "there is one")
