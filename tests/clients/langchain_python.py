"""LangChain's OpenAI and Anthropic packages, unmodified."""

from __future__ import annotations

from typing import Any, Literal

from checks import BASE, EMBED, KEY, MODEL, QUESTION, V1, check, main
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

FIXED: Any = {"base_url": V1, "api_key": KEY, "model": MODEL, "timeout": 120, "max_retries": 0}


class Boat(BaseModel):
    """What structured answers are parsed into."""

    colour: Literal["red", "blue"]
    sails: bool


@check("ChatOpenAI, invoke, stream, batch")
def chat() -> None:
    model = ChatOpenAI(**FIXED, max_tokens=20)
    answer = model.invoke(QUESTION)
    assert answer.content
    assert answer.usage_metadata
    assert "".join(str(chunk.content) for chunk in model.stream(QUESTION))
    assert len(model.batch([QUESTION] * 3)) == 3


@check("ChatOpenAI, structured output")
def structured() -> None:
    model = ChatOpenAI(**FIXED, max_tokens=300)
    for method in ("json_schema", "function_calling"):
        parsed = model.with_structured_output(Boat, method=method).invoke(QUESTION)
        assert isinstance(parsed, Boat), method


@check("ChatOpenAI, Responses API")
def responses() -> None:
    model = ChatOpenAI(**FIXED, max_tokens=20, use_responses_api=True)
    assert model.invoke(QUESTION).text
    assert "".join(str(chunk.text) for chunk in model.stream(QUESTION))


@check("OpenAI (completions)")
def completions() -> None:
    assert OpenAI(**FIXED, max_tokens=5).invoke("Flotilla")


@check("OpenAIEmbeddings", needs="embed")
def embeddings() -> None:
    # Without its own tokenizer, which would be downloaded.
    model = OpenAIEmbeddings(
        base_url=V1, api_key=KEY, model=EMBED, check_embedding_ctx_length=False
    )
    assert len(model.embed_documents(["one", "two"])) == 2
    assert model.embed_query("one")


@check("ChatAnthropic")
def messages() -> None:
    model = ChatAnthropic(base_url=BASE, api_key=KEY, model=MODEL, max_tokens=20, max_retries=0)
    assert model.invoke(QUESTION).content
    assert "".join(str(chunk.content) for chunk in model.stream(QUESTION))


main()
