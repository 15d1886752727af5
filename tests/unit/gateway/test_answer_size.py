"""How large an answer may be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.answer_size import check_answer_size
from gateway.core.prompt_limits import MAX_ANSWER_BYTES, check_input
from shared.api.endpoint import InputKind, Policy
from shared.job.errors import BadRequest
from tests.harness.settings import Settings

CHAT = Policy(InputKind.MESSAGES, choices=True)
COMPLETIONS = Policy(InputKind.PROMPT, choices=True)
BATCH = Policy(InputKind.CONVERSATIONS, choices=True)
RESPONSE = Policy(InputKind.RESPONSE)
TOP = {"logprobs": True, "top_logprobs": 20}
USER = {"role": "user", "content": "hello"}
SETTINGS = Settings()


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        (CHAT, {"max_tokens": 131_072}),
        (CHAT, {"max_tokens": 2**63}),
        (CHAT, {"n": 64, "max_tokens": 32_768}),
        (CHAT, {"n": 64, "max_tokens": 280, **TOP, "stream": True}),
        (CHAT, {"n": 1, "max_tokens": 16_384, **TOP, "stream": True}),
        (CHAT, {"n": 1, "max_tokens": 309, **TOP}),
        (CHAT, {"n": 1, **TOP}),
        (CHAT, {"n": 4, "logprobs": True, "top_logprobs": 5}),
        (CHAT, {"n": 16, **TOP, "stream": True}),
        (CHAT, {"n": 64, "max_tokens": 4000, "logprobs": False, "top_logprobs": 20}),
        (CHAT, {"n": "many", "max_tokens": "x", "logprobs": "y", "top_logprobs": []}),
        (COMPLETIONS, {"prompt": "x", "n": 19, "logprobs": 20}),
        (COMPLETIONS, {"prompt": ["x" * 4096] * 64, "max_tokens": 1, "echo": True, "logprobs": 1}),
        (COMPLETIONS, {"prompt": "x" * 40_000, "prompt_logprobs": 20}),
        (RESPONSE, {"input": "x", "max_output_tokens": 309, "top_logprobs": 20}),
    ],
)
def test_generous(policy: Policy, fields: dict[str, Any]) -> None:
    check_input(policy, fields, SETTINGS)


@pytest.mark.parametrize(
    ("policy", "fields", "param"),
    [
        (CHAT, {"n": 64, "max_tokens": 400, **TOP}, "n"),
        (CHAT, {"n": 64, "max_completion_tokens": 400, "max_tokens": 1, **TOP}, "n"),
        (CHAT, {"n": 64, "max_tokens": 400, "logprobs": True, "top_logprobs": -1}, "n"),
        (CHAT, {"n": 64, **TOP}, "n"),
        (CHAT, {"n": 64, "max_tokens": 2**63}, "n"),
        (
            CHAT,
            {"n": 64, "max_tokens": 400, "logprobs": True, "logprob_token_ids": [*range(20)]},
            "n",
        ),
        (COMPLETIONS, {"prompt": "x", "n": 64, "max_tokens": 400, "logprobs": 20}, "n"),
        (COMPLETIONS, {"prompt": ["x"] * 64, "max_tokens": 400, "logprobs": 20}, "max_tokens"),
        (COMPLETIONS, {"prompt": [[1] * 400] * 64, "prompt_logprobs": 20}, "max_tokens"),
        (COMPLETIONS, {"prompt": "x" * 90_000, "echo": True, "logprobs": 20}, "max_tokens"),
        (BATCH, {"messages": [[USER]] * 64, "max_tokens": 400, **TOP}, "max_tokens"),
        (RESPONSE, {"input": "x", "max_output_tokens": 30_000, "top_logprobs": 20}, "max_tokens"),
    ],
)
def test_sequences_tokens_and_alternatives_are_one_limit(
    policy: Policy, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest, match=f"at most {MAX_ANSWER_BYTES} are") as refusal:
        check_input(policy, {**fields, "stream": True}, SETTINGS)
    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        (CHAT, {"n": 1, "max_tokens": 310, **TOP}),
        (COMPLETIONS, {"prompt": "x", "n": 20, "logprobs": 20}),
        (CHAT, {"n": 64, "max_tokens": 280, **TOP, "stream": False}),
        (COMPLETIONS, {"prompt": ["x"] * 64, "max_tokens": 128, "logprobs": 20}),
        (RESPONSE, {"input": "x", "max_output_tokens": 16_384, "top_logprobs": 20}),
    ],
)
def test_many_log_probabilities_are_streamed(policy: Policy, fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="Set `stream`") as refusal:
        check_input(policy, fields, SETTINGS)
    assert refusal.value.param == "stream"
    check_input(policy, {**fields, "stream": True}, SETTINGS)

    with pytest.raises(BadRequest, match="`max_tokens` is not set"):
        check_answer_size({"n": 2}, 1, 20, 10_000, 10_000)
