"""The routes that generate no text: each has one small answer, whatever is asked."""

from __future__ import annotations

from typing import Any

from shared.api.operator_actions import ACTIONS


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    usage = {"prompt_tokens": 1, "total_tokens": 1, "completion_tokens": 0}
    data = [{"index": 0, **item}]
    return {"id": "simulated", "object": "list", "created": 0, "data": data, "usage": usage}


_SCORES = _list_of({"object": "score", "score": 0.5})
_RANKING = {
    "id": "simulated",
    "usage": {"prompt_tokens": 1, "total_tokens": 1},
    "results": [{"index": 0, "document": {"text": "[simulated]"}, "relevance_score": 0.5}],
}
CANNED: dict[str, dict[str, Any]] = {
    **{action.engine_path: {} for action in ACTIONS.values() if action.engine_path},
    "/is_sleeping": {"is_sleeping": False},
    "/reset_prefix_cache": {"success": True},
    "/server_info": {"vllm_config": "simulated"},
    "/v1/embeddings": _list_of({"object": "embedding", "embedding": [0.6, 0.8]}),
    "/v2/embed": {
        "id": "simulated",
        "embeddings": {"float": [[0.6, 0.8]]},
        "texts": ["[simulated]"],
        "response_type": "embeddings_by_type",
    },
    "/pooling": _list_of({"object": "pooling", "data": [0.6, 0.8]}),
    "/classify": _list_of({"label": "LABEL_0", "probs": [0.5, 0.5], "num_classes": 2}),
    "/score": _SCORES,
    "/v1/score": _SCORES,
    "/rerank": _RANKING,
    "/v1/rerank": _RANKING,
    "/v2/rerank": _RANKING,
    "/tokenize": {"count": 1, "max_model_len": 1, "tokens": [1]},
    "/detokenize": {"prompt": "[simulated]"},
    "/generative_scoring": _SCORES,
    "/v1/systemone": {
        "id": "simulated",
        "object": "structured_decision",
        "created": 0,
        "answers": {},
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "diagnostics": {},
    },
    "/v1/messages/count_tokens": {"input_tokens": 1},
    "/v1/audio/transcriptions": {"text": "[simulated]"},
    "/v1/audio/translations": {"text": "[simulated]"},
}
"""By path; api.py adds the model's name to those of endpoints."""
