"""Every field of vLLM's request types that can hold media or tensors is known to the gateway."""

from __future__ import annotations

import re

import pytest

from shared.api import field_policy
from shared.api.field_policy import NEEDS_PERMISSION
from tests.unit.worker.request_types import PATHS, names_of, request_type

pytestmark = pytest.mark.vllm

MEDIA_FIELDS = field_policy._MEDIA | field_policy._WITH_UUID | field_policy._URL_LISTS

MAY_HOLD_MEDIA = re.compile(
    r"url|uri|image|audio|video|embed|tensor|pil$|media|source|uuid|file|data|path|bytes|mm_"
)
HARMLESS = {
    "bytes": "of a token",
    "data_1": "looked into as a whole",
    "data_2": "the same",
    "embed_dtype": "of the answer",
    "embedding_types": "of the answer",
    "embedding_weight": "of a file search, which vLLM does not have",
    "file": "vLLM has no such part",
    "file_data": "in the request itself",
    "file_id": "OpenAI's files, which vLLM does not have",
    "file_ids": "the same",
    "filename": "the same",
    "input_image_mask": "of a tool that vLLM does not have",
    "media_type": "of data in the request itself",
    "metadata": "returned as it is",
    "mm_payload": "only of vLLM's render routes",
    "partial_images": "of a tool that vLLM does not have",
    "path": "of a patch, which vLLM does not apply",
    "return_mm_kwargs": "only of vLLM's render routes",
    "server_url": "of an MCP server: vLLM opens only those of its own settings",
    "sources": "of a web search, which vLLM does not have",
    "url": "inside the fields that are known, or of a citation",
}
"""Names that do not make a worker fetch or unpickle anything, and why."""
KNOWN_PARTS = {
    *(f"type={name}" for name in MEDIA_FIELDS),
    *("type=image", "type=url", "type=input_image", "type=input_file", "type=file"),
    *("type=file_search", "type=file_search_call", "type=file_citation", "type=url_citation"),
    *("type=container_file_citation", "type=file_path", "type=image_generation"),
    *("type=image_generation_call", "type=create_file", "type=update_file", "type=delete_file"),
}
"""Types of objects whose fields are in the other two tables."""


@pytest.mark.parametrize("path", PATHS)
def test_fields_that_may_hold_media_are_known(path: str) -> None:
    names = {name for name in names_of(request_type(path)) if MAY_HOLD_MEDIA.search(name)}
    unknown = names - MEDIA_FIELDS - set(NEEDS_PERMISSION) - set(HARMLESS) - KNOWN_PARTS
    assert not unknown, "add them to shared/api/field_policy.py, or here with the reason"


def test_what_is_called_harmless_is_still_there() -> None:
    names: set[str] = set()
    for path in PATHS:
        names |= names_of(request_type(path))
    assert set(HARMLESS) | KNOWN_PARTS <= names | {f"type={name}" for name in MEDIA_FIELDS}


def test_every_part_that_vllm_reads_media_from_is_known() -> None:
    """vLLM's own table: its renderer knows no other parts."""
    from vllm.renderers.chat_utils import MM_PARSER_MAP, TEXT_PART_TYPES

    read = set(MM_PARSER_MAP) - TEXT_PART_TYPES - {"tool_reference", "input_image"}
    assert read <= MEDIA_FIELDS
