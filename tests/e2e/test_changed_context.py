"""Real vLLM does not continue an answer whose prompt has changed between two attempts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from shared.job.log import Entry
from tests.e2e.shared_engine import SharedEngine
from tests.unit.worker.bench import Bench
from worker.core.run import Outcome
from worker.engines.interface import Engine

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story about a queue."}],
    "temperature": 0,
    "max_tokens": 12,
    "ignore_eos": True,
}
Change = Callable[[str], None]


@pytest.fixture(params=["middleware", "template"])
def change(
    request: pytest.FixtureRequest, vllm_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> Change:
    """Changes what a middleware adds to the prompt, or what the chat template does."""
    tokenizer = vllm_engine._engine.renderer.tokenizer  # type: ignore[attr-defined]
    template = tokenizer.chat_template

    def make(today: str) -> None:
        if request.param == "middleware":
            monkeypatch.setattr(Dated, "today", today)
        else:
            monkeypatch.setattr(tokenizer, "chat_template", f"Today is {today}. {template}")

    return make


class Dated(SharedEngine):
    """With a middleware that puts the date before a chat, if there is one."""

    today = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = await receive()
        chat = json.loads(request["body"])
        if self.today:
            chat["messages"].insert(0, {"role": "system", "content": self.today})
        changed = iter([{**request, "body": json.dumps(chat).encode()}])

        async def receive_changed() -> Any:
            return next(changed, None) or await receive()

        await super().__call__(scope, receive_changed, send)


async def run(engine: Engine, before: list[Entry], **fields: Any) -> tuple[Bench, Outcome]:
    bench = Bench(Dated(engine), before)
    outcome = await bench.run(**ASKED, **fields).execute()
    await bench.close()
    return bench, outcome


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_is_not_continued_with_another_prompt(
    vllm_engine: Engine, change: Change, stream: bool
) -> None:
    change("monday")
    first, outcome = await run(vllm_engine, [], stream=stream)
    assert outcome is Outcome.FINISHED
    before = first.queue.log[:-1][:5]  # a busy engine makes few entries of an answer
    assert before
    same, outcome = await run(vllm_engine, before, stream=stream)
    assert (outcome, same.queue.restarted) == (Outcome.FINISHED, [])
    change("tuesday")
    bench, outcome = await run(vllm_engine, before, stream=stream)
    assert bench.queue.restart_codes == ["context_changed"]
    if stream:  # a client has seen it
        assert (outcome, bench.queue.entries) == (Outcome.LOST, [])
    else:
        assert outcome is Outcome.FINISHED
        assert bench.queue.answer.completion_tokens == 12


async def test_an_answer_is_not_continued_with_another_model(
    vllm_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await run(vllm_engine, [], stream=True)
    contexts = vllm_engine._app.state.engine_client._contexts  # type: ignore[attr-defined]
    assert contexts._model > 1, "the demo model's files were found"
    monkeypatch.setattr(contexts, "_model", contexts._model + 1)
    bench, outcome = await run(vllm_engine, first.queue.log[:3], stream=True)
    assert (outcome, bench.queue.restart_codes) == (Outcome.LOST, ["context_changed"])
