"""LlamaIndex' packages for OpenAI-like servers, unmodified."""

from __future__ import annotations

from checks import EMBED, KEY, MODEL, QUESTION, V1, check, main
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model=MODEL,
    api_base=V1,
    api_key=KEY,
    is_chat_model=True,
    context_window=4096,
    max_tokens=20,
    timeout=120,
    max_retries=0,
)


@check("complete, chat")
def chat() -> None:
    assert llm.complete(QUESTION).text
    assert llm.chat([ChatMessage(role="user", content=QUESTION)]).message.content


@check("stream_chat")
def stream() -> None:
    parts = llm.stream_chat([ChatMessage(role="user", content=QUESTION)])
    assert "".join(part.delta or "" for part in parts)


@check("achat")
async def asynchronous() -> None:
    assert (await llm.achat([ChatMessage(role="user", content=QUESTION)])).message.content


@check("completions")
def completions() -> None:
    plain = OpenAILike(
        model=MODEL, api_base=V1, api_key=KEY, is_chat_model=False, max_tokens=5, timeout=120
    )
    assert plain.complete("Flotilla").text


@check("embeddings", needs="embed")
def embeddings() -> None:
    model = OpenAILikeEmbedding(model_name=EMBED, api_base=V1, api_key=KEY, timeout=120)
    assert len(model.get_text_embedding_batch(["one", "two"])) == 2
    assert model.get_query_embedding("one")


main()
