"""Requests to pooling models, for the test of equal answers (parity_cases.py has the others)."""

from __future__ import annotations

from typing import Any

from tests.vllm.parity_cases import ASK, Case

EMBEDDINGS, RERANK, SCORE = "/v1/embeddings", "/v1/rerank", "/v1/score"
TEXT = "A queue is durable."
NO_ROUTE = "vLLM's own answer is not in OpenAI's shape"
DOCUMENTS = ["Berlin is a city.", "A queue holds jobs."]


def embed(**fields: Any) -> dict[str, Any]:
    """One text."""
    return {"input": TEXT, **fields}


def rerank(**fields: Any) -> dict[str, Any]:
    """Two documents."""
    return {"query": "What is a queue?", "documents": DOCUMENTS, **fields}


EMBED: tuple[Case, ...] = (
    Case("embed a text", EMBEDDINGS, embed()),
    Case("embed two texts", EMBEDDINGS, embed(input=[TEXT, "Another."])),
    Case("embed token ids", EMBEDDINGS, embed(input=[5, 6, 7])),
    Case("embed lists of token ids", EMBEDDINGS, embed(input=[[5, 6], [7]])),
    Case("embed in base64", EMBEDDINGS, embed(encoding_format="base64")),
    Case("embed in bytes", EMBEDDINGS, embed(encoding_format="bytes")),
    Case("embed in bytes without metadata", EMBEDDINGS, embed(encoding_format="bytes_only")),
    Case("embed with half the digits", EMBEDDINGS,
         embed(encoding_format="base64", embed_dtype="float16")),
    Case("embed a chat", EMBEDDINGS, {"messages": ASK}),
    Case("embed truncated", EMBEDDINGS, embed(truncate_prompt_tokens=3)),
    Case("embed for a user", EMBEDDINGS, embed(user="u")),
    Case("embed an empty text", EMBEDDINGS, embed(input="")),
    Case("embed nothing", EMBEDDINGS, embed(input=[])),
    Case("embed no input", EMBEDDINGS, {}),
    Case("embed a number", EMBEDDINGS, embed(input=7)),
    Case("embed in an unknown format", EMBEDDINGS, embed(encoding_format="x")),
    Case("embed in fewer dimensions", EMBEDDINGS, embed(dimensions=4)),
    Case("embed token ids out of the vocabulary", EMBEDDINGS, embed(input=[99_999_999])),
    Case("embed too long", EMBEDDINGS, embed(input="word " * 20_000)),
    Case("embed for Cohere", "/v2/embed",
         {"texts": [TEXT], "input_type": "search_query", "embedding_types": ["float"]}),
    Case("embed nothing for Cohere", "/v2/embed", {"input_type": "search_query"}),
    Case("embed two texts for Cohere", "/v2/embed",
         {"texts": DOCUMENTS, "input_type": "search_query"}),
    Case("embed in three types for Cohere", "/v2/embed",
         {"texts": [TEXT], "embedding_types": ["float", "ubinary", "base64"]}),
    Case("embed an empty list for Cohere", "/v2/embed", {"texts": []}),
    Case("embed as a stream", EMBEDDINGS, embed(stream=True)),
    Case("embed a long text truncated", EMBEDDINGS,
         embed(input="word " * 2000, truncate_prompt_tokens=16)),
    Case("pool", "/pooling", embed()),
    Case("pool in base64", "/pooling", embed(encoding_format="base64")),
    Case("pool in bytes", "/pooling", embed(encoding_format="bytes")),
    Case("pool for a task that it does not have", "/pooling", embed(task="classify")),
    Case("pool for an unknown task", "/pooling", embed(task="x")),
    Case("pool no input", "/pooling", {}),
    Case("score by embeddings", SCORE, {"text_1": TEXT, "text_2": DOCUMENTS}),
    Case("score queries by embeddings", "/score", {"queries": TEXT, "documents": DOCUMENTS}),
    Case("score pairs by embeddings", SCORE, {"text_1": DOCUMENTS, "text_2": DOCUMENTS[::-1]}),
    Case("rerank by embeddings", RERANK, rerank()),
    Case("rerank the best by embeddings", "/rerank", rerank(top_n=1)),
    Case("tokenize for embeddings", "/tokenize", {"prompt": TEXT}),
    Case("tokenize for embeddings into texts", "/tokenize",
         {"prompt": TEXT, "return_token_strs": True}),
    Case("detokenize for embeddings", "/detokenize", {"tokens": [100, 101, 102]}),
    Case("invoke an embedding", "/invocations", embed()),
    Case("invoke nothing of embeddings", "/invocations", {"nothing": "known"}),
    Case("chat with a model of embeddings", "/v1/chat/completions",
         {"messages": ASK, "max_tokens": 3}, own_words=NO_ROUTE),
    Case("classify with a model of embeddings", "/classify", embed(), own_words=NO_ROUTE),
)  # fmt: skip
"""For a model with `--runner pooling --convert embed`."""

CLASSIFY: tuple[Case, ...] = (
    Case("classify a text", "/classify", embed()),
    Case("classify two texts", "/classify", embed(input=[TEXT, "Another."])),
    Case("classify token ids", "/classify", embed(input=[5, 6, 7])),
    Case("classify without activation", "/classify", embed(use_activation=False)),
    Case("classify no input", "/classify", {}),
    Case("classify a number", "/classify", embed(input=7)),
    Case("classify too long", "/classify", embed(input="word " * 20_000)),
    Case("classify a chat", "/classify", {"messages": ASK}),
    Case("pool classes", "/pooling", embed(task="classify")),
    Case("invoke a classifier", "/invocations", embed()),
    Case("tokenize a chat for classes", "/tokenize", {"messages": ASK}),
)
"""For a sequence classifier."""

SCORES: tuple[Case, ...] = (
    Case("score a pair", SCORE, {"text_1": TEXT, "text_2": DOCUMENTS[1]}),
    Case("score one with two", "/score", {"text_1": TEXT, "text_2": DOCUMENTS}),
    Case("score two with two", SCORE, {"text_1": DOCUMENTS, "text_2": DOCUMENTS}),
    Case("score queries and documents", SCORE, {"queries": TEXT, "documents": DOCUMENTS}),
    Case("score two with three", SCORE, {"text_1": DOCUMENTS, "text_2": [*DOCUMENTS, TEXT]}),
    Case("score queries and items", "/score", {"queries": DOCUMENTS, "items": DOCUMENTS}),
    Case("score data", SCORE, {"data_1": TEXT, "data_2": DOCUMENTS[0]}),
    Case("score half a pair", SCORE, {"text_1": TEXT}),
    Case("score with nothing", SCORE, {"text_1": TEXT, "text_2": []}),
    Case("rerank", RERANK, rerank()),
    Case("rerank at the root", "/rerank", rerank()),
    Case("rerank for Cohere", "/v2/rerank", rerank()),
    Case(
        "rerank a document of parts",
        "/v2/rerank",
        rerank(documents=[{"content": [{"type": "text", "text": TEXT}]}]),
    ),
    Case("rerank the best", RERANK, rerank(top_n=1)),
    Case("rerank truncated", RERANK, rerank(truncate_prompt_tokens=8)),
    Case("rerank without a query", RERANK, {"documents": DOCUMENTS}),
    Case("rerank no documents", RERANK, rerank(documents=[])),
    Case("rerank too long", RERANK, rerank(documents=["word " * 20_000])),
    Case("invoke a cross-encoder", "/invocations", rerank()),
)
"""For a cross-encoder."""
