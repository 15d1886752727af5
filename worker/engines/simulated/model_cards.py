"""The simulated engine's list of models, as vLLM's."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any


def model_cards(
    names: Sequence[str], root: str, max_model_len: int, adapters: Mapping[str, str]
) -> dict[str, Any]:
    """The answer to `GET /v1/models`; `adapters`: path by name."""
    now = int(time.time())
    permission = {
        "id": f"modelperm-{uuid.uuid4().hex[:16]}",
        "object": "model_permission",
        "created": now,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    cards = [
        {
            "id": name,
            "object": "model",
            "created": now,
            "owned_by": "simulated",
            "root": root,
            "parent": None,
            "max_model_len": max_model_len,
            "permission": [permission],
        }
        for name in names
    ]
    loaded = [
        cards[0] | {"id": name, "root": path, "parent": names[0], "max_model_len": None}
        for name, path in adapters.items()
    ]
    return {"object": "list", "data": [*cards, *loaded]}
