"""Routes and headers of vLLM, OpenAI, Anthropic and TorchServe that are refused on purpose.

shared/api/ROUTES.md is the same list beside the routes that work.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.job.errors import NotSupported

_ENGINE = "it changes or shows one engine, and here a request may run on any worker of its pool."
_WEIGHTS = (
    "it changes a model's weights in place; start workers with the new weights as another version."
)
_SPLIT = (
    "it splits one request between servers, for disaggregated serving, and vLLM has it switched "
    "off by default. A request here runs on one worker."
)
_NOT_VLLM = "vLLM has no such model or store."
_NO_ASSISTANTS = "vLLM has no such store; use /v1/responses with `conversation`."
_KSERVE = (
    "KServe's protocol has no fields for chat and streams; use /predictions/<model> or "
    "POST /v1/chat/completions."
)

REFUSED: dict[str, str] = {
    # vLLM
    "/tokenizer_info": "it shows the model's chat template, and vLLM has it switched off by "
    "default; use /tokenize and /detokenize.",
    "/v1/chat/completions/render": _SPLIT,
    "/v1/completions/render": _SPLIT,
    "/v1/messages/render": _SPLIT,
    "/v1/responses/render": _SPLIT,
    "/v1/chat/completions/derender": _SPLIT,
    "/v1/completions/derender": _SPLIT,
    "/inference/v1/generate": _SPLIT,
    "/inference/v1/abort_requests": "use POST /jobs/<id>/cancel.",
    "/abort_requests": "use POST /jobs/<id>/cancel.",
    "/scale_elastic_ep": _ENGINE,
    "/is_scaling_elastic_ep": _ENGINE,
    "/kv_event_sources": _ENGINE,
    "/fault_tolerance": _ENGINE,
    "/release_kv_cache_memory": "use POST /sleep.",
    "/collective_rpc": "it runs any method in the engine's processes.",
    "/init_weight_transfer_engine": _WEIGHTS,
    "/shutdown_weight_transfer_engine": _WEIGHTS,
    "/start_weight_update": _WEIGHTS,
    "/start_draft_weight_update": _WEIGHTS,
    "/update_weights": _WEIGHTS,
    "/finish_weight_update": _WEIGHTS,
    "/update_weight_version": _WEIGHTS,
    "/weight_info": _WEIGHTS,
    "/weight_checker": _WEIGHTS,
    "/get_world_size": _ENGINE,
    "/adapters": "it is SageMaker's; use POST /v1/load_lora_adapter and /v1/unload_lora_adapter, "
    "which reach all workers of a pool.",
    "/cohere/v2/chat": "vLLM serves it only with a switch and Cohere's own package; use "
    "POST /v1/chat/completions.",
    "/v1/realtime": "it is a WebSocket, and a job's input has to be complete when it is queued.",
    # OpenAI
    "/v1/responses/compact": "vLLM does not compact conversations.",
    "/v1/responses/input_tokens": "use POST /tokenize.",
    "/v1/moderations": _NOT_VLLM,
    "/v1/images": _NOT_VLLM,
    "/v1/videos": _NOT_VLLM,
    "/v1/audio/speech": _NOT_VLLM,
    "/v1/assistants": _NO_ASSISTANTS,
    "/v1/threads": _NO_ASSISTANTS,
    "/v1/vector_stores": _NO_ASSISTANTS,
    "/v1/containers": _NOT_VLLM,
    "/v1/evals": _NOT_VLLM,
    "/v1/fine_tuning": _NOT_VLLM,
    # TorchServe
    "/explanations": "vLLM explains no answers; `logprobs` has the probabilities of tokens.",
    "POST /v1/models": _KSERVE,
    "/v2/models": _KSERVE,
    "/v2/health": "use GET /ping.",
    "/token": "keys do not expire; the settings FLOTILLA_API_KEYS and _ADMIN_KEYS have them.",
    "/workflows": "a job is one call of one model; use a hook for what comes before and after it.",
    "/wfpredict": "a job is one call of one model; use a hook for what comes before and after it.",
}
"""`[METHOD ]path` -> why it is refused, there and at all paths below it."""

HOSTING_HEADERS: dict[bytes, str] = {
    b"x-amzn-sagemaker-adapter-identifier": "name the adapter as `model` of the body.",
    b"x-amzn-sagemaker-session-id": "a session is kept in files of one server, and here a request "
    "may run on any worker of its pool; use /v1/responses with `conversation`.",
}
"""Headers with which vLLM's hosting package changes a call of /invocations -> why they are not
served. Without them the call would get another answer than its client expects."""


def refuse_hosting_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises NotSupported if a call of /invocations has one of these headers."""
    for name, _ in headers:
        if reason := HOSTING_HEADERS.get(name):
            raise NotSupported(f"The header `{name.decode()}` is not served: {reason}")


def not_supported(method: str, path: str) -> NotSupported | None:
    """The error for a request to one of these routes; None for any other."""
    parts = path.rstrip("/").split("/")
    for end in range(len(parts), 1, -1):
        prefix = "/".join(parts[:end])
        for route in (f"{method} {prefix}", prefix):
            if reason := REFUSED.get(route):
                return NotSupported(f"{method} {path[:200]} is not served: {reason}")
    return None
