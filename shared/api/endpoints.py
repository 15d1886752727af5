"""The endpoint table: every vLLM route that can be called through the queue, and how it is called.

To add an endpoint, add a row here, its path and schemas to its API (`gateway/apis/<name>/`) and its
answer to `worker/engines/simulated/api.py`. The row is all that the others need: the
gateway routes, checks and documents the path (`gateway/description/endpoint_route.py`,
`gateway/core/call.py`), the worker calls the engine's route (`worker/core/run.py`).
"""

from __future__ import annotations

from shared.api.endpoint import (
    BodyKind,
    Endpoint,
    ErrorStyle,
    InputKind,
    ModelField,
    Policy,
    StreamFormat,
    Task,
)

_CHAT = (
    Endpoint(
        path="/v1/chat/completions",
        task=Task.GENERATE,
        stream=StreamFormat.CHAT_CHUNKS,
        policy=Policy(InputKind.MESSAGES, choices=True, service_tier=True),
        summary="Answer a conversation (OpenAI chat)",
        request_schema="ChatRequest",
        response_schema="ChatCompletion",
    ),
    Endpoint(
        path="/v1/responses",
        task=Task.GENERATE,
        errors=ErrorStyle.RESPONSE,
        stream=StreamFormat.RESPONSE_EVENTS,
        policy=Policy(InputKind.RESPONSE, service_tier=True),
        summary="Answer a conversation, and keep the answer (OpenAI responses)",
        request_schema="ResponseRequest",
        response_schema="Response",
    ),
    Endpoint(
        path="/v1/chat/completions/batch",
        task=Task.GENERATE,
        policy=Policy(InputKind.CONVERSATIONS, choices=True, service_tier=True),
        summary="Answer several conversations, one choice for each",
        request_schema="BatchChatRequest",
        response_schema="ChatCompletion",
    ),
    Endpoint(
        path="/v1/completions",
        task=Task.GENERATE,
        stream=StreamFormat.COMPLETION_CHUNKS,
        policy=Policy(InputKind.PROMPT, choices=True, service_tier=True),
        summary="Continue a text (OpenAI completions)",
        request_schema="CompletionRequest",
        response_schema="Completion",
    ),
    Endpoint(
        path="/v1/messages",
        task=Task.GENERATE,
        model=ModelField.REQUIRED,
        errors=ErrorStyle.ANTHROPIC,
        stream=StreamFormat.MESSAGE_EVENTS,
        policy=Policy(InputKind.BLOCKS),
        summary="Answer a conversation (Anthropic messages)",
        request_schema="MessagesRequest",
        response_schema="Message",
    ),
    Endpoint(
        path="/v1/messages/count_tokens",
        task=Task.GENERATE,
        model=ModelField.REQUIRED,
        errors=ErrorStyle.ANTHROPIC,
        policy=Policy(InputKind.BLOCKS),
        summary="Count the tokens of a conversation (Anthropic messages)",
        request_schema="CountTokensRequest",
        response_schema="CountTokens",
    ),
    Endpoint(
        path="/v1/audio/transcriptions",
        task=Task.TRANSCRIPTION,
        body=BodyKind.MULTIPART,
        stream=StreamFormat.TRANSCRIPTION_CHUNKS,
        policy=Policy(InputKind.AUDIO),
        summary="Write down speech (OpenAI audio)",
        request_schema="TranscriptionRequest",
        response_schema="Transcription",
    ),
    Endpoint(
        path="/v1/audio/translations",
        task=Task.TRANSCRIPTION,
        body=BodyKind.MULTIPART,
        stream=StreamFormat.TRANSCRIPTION_CHUNKS,
        policy=Policy(InputKind.AUDIO),
        summary="Translate speech (OpenAI audio)",
        request_schema="TranslationRequest",
        response_schema="Transcription",
    ),
)
_POOLING = (
    Endpoint(
        path="/v1/embeddings",
        task=Task.EMBED,
        policy=Policy(InputKind.INPUT),
        summary="Embed texts (OpenAI embeddings)",
        request_schema="EmbeddingRequest",
        response_schema="EmbeddingList",
    ),
    Endpoint(
        path="/v2/embed",
        task=Task.EMBED,
        policy=Policy(InputKind.TEXTS),
        summary="Embed texts (Cohere)",
        request_schema="CohereEmbedRequest",
        response_schema="CohereEmbeddings",
    ),
    Endpoint(
        path="/pooling",
        task=Task.POOLING,
        policy=Policy(InputKind.INPUT),
        summary="The pooled output of a model",
        request_schema="EmbeddingRequest",
        response_schema="PoolingList",
    ),
    Endpoint(
        path="/classify",
        task=Task.CLASSIFY,
        policy=Policy(InputKind.INPUT),
        summary="Classify texts",
        request_schema="ClassifyRequest",
        response_schema="ClassificationList",
    ),
    *(
        Endpoint(
            path=path,
            task=Task.SCORE,
            policy=Policy(InputKind.PAIRS),
            summary="Score how well pairs of texts match",
            request_schema="ScoreRequest",
            response_schema="ScoreList",
        )
        for path in ("/score", "/v1/score")
    ),
    *(
        Endpoint(
            path=path,
            task=Task.SCORE,
            policy=Policy(InputKind.DOCUMENTS),
            summary="Order documents by how well they match a query (Jina, Cohere)",
            request_schema="RerankRequest",
            response_schema="Reranked",
        )
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    ),
)
_OF_EACH_MODEL = (
    Endpoint(
        path="/tokenize",
        task=Task.TOKENIZE,
        policy=Policy(InputKind.TEXT_TO_TOKENIZE),
        summary="The token ids of a text or a conversation",
        request_schema="TokenizeRequest",
        response_schema="Tokens",
    ),
    Endpoint(
        path="/detokenize",
        task=Task.TOKENIZE,
        policy=Policy(InputKind.TOKENS),
        summary="The text of token ids",
        request_schema="DetokenizeRequest",
        response_schema="DetokenizedText",
    ),
    Endpoint(
        path="/invocations",
        task=Task.ANY,
        stream=StreamFormat.CHAT_CHUNKS,
        policy=Policy(InputKind.ANY, choices=True, service_tier=True),
        summary="Any of the above, by the body's fields (SageMaker)",
        request_schema="Invocation",
        response_schema="Invoked",
    ),
)
_READS = (
    Endpoint(
        path="/generative_scoring",
        task=Task.GENERATE,
        policy=Policy(InputKind.ITEMS),
        summary="How probable a token is behind each item",
        request_schema="GenerativeScoringRequest",
        response_schema="ScoreList",
    ),
    Endpoint(
        path="/v1/systemone",
        task=Task.GENERATE,
        policy=Policy(InputKind.QUESTIONS),
        summary="Decide questions about a text with one token each",
        request_schema="DecisionRequest",
        response_schema="Decisions",
    ),
)

ENDPOINTS: dict[str, Endpoint] = {
    row.path: row for row in (*_CHAT, *_POOLING, *_OF_EACH_MODEL, *_READS)
}
"""By path. What is not in this table is not served."""
