"""Schemas of embeddings, classes, scores and tokens."""

from __future__ import annotations

from gateway.description.schema import (
    ANYTHING,
    MAYBE_OBJECT,
    MAYBE_TEXT,
    NUMBER,
    TEXT,
    WHOLE,
    YES_NO,
    Schema,
    array,
    obj,
    ref,
)

_MODEL: dict[str, Schema] = {"model": MAYBE_TEXT | {"description": "one of GET /v1/models"}}
_MESSAGES: Schema = array(obj("role", role=TEXT))
_IDS: Schema = array(WHOLE)
_TRUNCATION: dict[str, Schema] = {"truncate_prompt_tokens": {"type": ["integer", "null"]}}
_INPUT: dict[str, Schema] = {
    **_MODEL,
    **_TRUNCATION,
    "input": {
        "anyOf": [TEXT, array(TEXT), _IDS, array(_IDS), _MESSAGES, array(_MESSAGES)],
        "description": "texts, token ids, or conversations",
    },
    "messages": {"anyOf": [_MESSAGES, array(_MESSAGES)], "description": "in place of `input`"},
}
_SCORED: Schema = {"anyOf": [TEXT, obj("content", content=array(ANYTHING))]}
_SCORED_LIST: Schema = {"anyOf": [_SCORED, array(_SCORED)]}
_ANSWER: dict[str, Schema] = {
    "id": TEXT,
    "object": TEXT,
    "created": WHOLE,
    "model": MAYBE_TEXT,
    "usage": MAYBE_OBJECT,
}


def _list_of(item: Schema) -> Schema:
    return obj("id object created data usage", **_ANSWER, data=array(item))


POOLING_SCHEMAS: dict[str, Schema] = {
    "EmbeddingRequest": obj(
        "",
        **_INPUT,
        encoding_format={"enum": ["float", "base64", "bytes", "bytes_only"]},
        dimensions={"type": ["integer", "null"]},
    )
    | {
        "description": "vLLM's fields. `bytes` is answered with the numbers of all embeddings, "
        "one after the other, and the header `metadata`.",
        "example": {"model": "my-embedder", "input": ["What is Flotilla?"]},
    },
    "EmbeddingList": _list_of(
        obj("index object embedding", index=WHOLE, object=TEXT, embedding={})
    ),
    "PoolingList": _list_of(obj("index object data", index=WHOLE, object=TEXT, data={})),
    "CohereEmbedRequest": obj(
        "",
        **_MODEL,
        texts=array(TEXT),
        images=array(TEXT),
        inputs=array(ANYTHING),
        input_type=TEXT,
        embedding_types=array({"enum": ["float", "binary", "ubinary", "base64"]}),
        truncate={"enum": ["NONE", "START", "END"]},
        output_dimension=WHOLE,
    ),
    "CohereEmbeddings": obj(
        "id embeddings response_type",
        id=TEXT,
        embeddings=ANYTHING,
        texts=array(TEXT),
        meta=MAYBE_OBJECT,
        response_type=TEXT,
    ),
    "ClassifyRequest": obj("", **_INPUT),
    "ClassificationList": _list_of(
        obj(
            "index label probs num_classes",
            index=WHOLE,
            label=MAYBE_TEXT,
            probs=array(NUMBER),
            num_classes=WHOLE,
        )
    ),
    "ScoreRequest": obj(
        "",
        **_MODEL,
        **_TRUNCATION,
        queries=_SCORED_LIST,
        documents=_SCORED_LIST,
        items=_SCORED_LIST,
        text_1=_SCORED_LIST,
        text_2=_SCORED_LIST,
        data_1=_SCORED_LIST,
        data_2=_SCORED_LIST,
    )
    | {"description": "`queries` and `documents` (or `items`), or `text_1` and `text_2`"},
    "ScoreList": _list_of(obj("index object score", index=WHOLE, object=TEXT, score=NUMBER)),
    "RerankRequest": obj(
        "query documents",
        **_MODEL,
        **_TRUNCATION,
        query=_SCORED,
        documents=_SCORED_LIST,
        top_n=WHOLE,
    ),
    "Reranked": obj(
        "id model usage results",
        id=TEXT,
        model=TEXT,
        usage=ANYTHING,
        results=array(
            obj(
                "index document relevance_score",
                index=WHOLE,
                document=ANYTHING,
                relevance_score=NUMBER,
            )
        ),
    ),
    "TokenizeRequest": obj(
        "",
        **_MODEL,
        prompt=TEXT,
        messages=_MESSAGES | {"description": "in place of `prompt`"},
        add_special_tokens=YES_NO,
        return_token_strs={"type": ["boolean", "null"]},
    ),
    "Tokens": obj(
        "count max_model_len tokens",
        count=WHOLE,
        max_model_len=WHOLE,
        tokens=_IDS,
        token_strs={"type": ["array", "null"]},
    ),
    "DetokenizeRequest": obj("tokens", **_MODEL, tokens=_IDS),
    "DetokenizedText": obj("prompt", prompt=TEXT),
    "GenerativeScoringRequest": obj(
        "query items label_token_ids",
        **_MODEL,
        query={"anyOf": [TEXT, _IDS]},
        items={"anyOf": [array(TEXT), array(_IDS)]},
        label_token_ids=_IDS,
        apply_softmax=YES_NO,
        item_first=YES_NO,
    ),
    "DecisionRequest": obj(
        "state questions",
        **_MODEL,
        state={},
        questions={
            "type": "object",
            "additionalProperties": obj("type", type=TEXT, instructions={}, criteria={}),
        },
        instructions=MAYBE_TEXT,
    ),
    "Decisions": obj(
        "id object created model answers usage diagnostics",
        id=TEXT,
        object=TEXT,
        created=WHOLE,
        model=TEXT,
        answers=ANYTHING,
        usage=ANYTHING,
        diagnostics=ANYTHING,
    ),
    "Invocation": {
        "anyOf": [
            ref(name)
            for name in (
                "ChatRequest",
                "CompletionRequest",
                "EmbeddingRequest",
                "ScoreRequest",
                "RerankRequest",
            )
        ]
    },
    "Invoked": ANYTHING | {"description": "the answer of the endpoint whose body it was"},
}
