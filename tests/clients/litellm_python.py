"""LiteLLM, unmodified, with its providers for OpenAI-like servers and for vLLM."""

from __future__ import annotations

from typing import Any

import litellm
from checks import BASE, EMBED, KEY, MODEL, QUESTION, RERANK, V1, check, main, raises

MESSAGES: Any = [{"role": "user", "content": QUESTION}]
FIXED: Any = {"api_key": KEY, "timeout": 120, "num_retries": 0}


@check("completion, as openai/ and as hosted_vllm/")
def completion() -> None:
    for provider in ("openai", "hosted_vllm"):
        answer = litellm.completion(
            model=f"{provider}/{MODEL}", messages=MESSAGES, api_base=V1, max_tokens=20, **FIXED
        )
        assert answer.choices[0].message.content, provider


@check("completion, streamed")
def stream() -> None:
    chunks = litellm.completion(
        model=f"openai/{MODEL}",
        messages=MESSAGES,
        api_base=V1,
        max_tokens=20,
        stream=True,
        **FIXED,
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@check("acompletion")
async def asynchronous() -> None:
    answer = await litellm.acompletion(
        model=f"openai/{MODEL}", messages=MESSAGES, api_base=V1, max_tokens=20, **FIXED
    )
    assert answer.choices[0].message.content


@check("text_completion")
def text_completion() -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}",
        prompt="Flotilla",
        api_base=V1,
        max_tokens=5,
        **FIXED,
    )
    assert answer.choices[0].text


@check("responses")
def responses() -> None:
    answer: Any = litellm.responses(
        model=f"openai/{MODEL}", input=QUESTION, api_base=V1, max_output_tokens=20, **FIXED
    )
    assert answer.output[0].content[0].text


@check("anthropic/")
def messages() -> None:
    answer = litellm.completion(
        model=f"anthropic/{MODEL}", messages=MESSAGES, api_base=BASE, max_tokens=20, **FIXED
    )
    assert answer.choices[0].message.content


@check("embedding", needs="embed")
def embedding() -> None:
    answer = litellm.embedding(
        model=f"openai/{EMBED}", input=["one"], api_base=V1, encoding_format="float", **FIXED
    )
    assert answer.data[0]["embedding"]


@check("rerank", needs="rerank")
def rerank() -> None:
    answer: Any = litellm.rerank(
        model=f"hosted_vllm/{RERANK}",
        query="What is a lane?",
        documents=["A lane is a queue.", "A boat has sails."],
        api_base=BASE,
        api_key=KEY,
        top_n=2,
    )
    assert len(answer.results) == 2


@check("errors")
def errors() -> None:
    raises(
        litellm.NotFoundError,
        lambda: litellm.completion(
            model="openai/no-such-model", messages=MESSAGES, api_base=V1, **FIXED
        ),
    )


main()
