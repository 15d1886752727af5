"""Responses and conversations in the API's description: schemas by name, errors."""

from __future__ import annotations

from gateway.description.schema import (
    ANYTHING,
    MAYBE_NUMBER,
    MAYBE_OBJECT,
    MAYBE_TEXT,
    TEXT,
    WHOLE,
    YES_NO,
    Kinds,
    Schema,
    array,
    obj,
    ref,
)
from shared.job.errors import ConversationLocked, PreviousResponseNotFound, QuotaExceeded

RESPONSE_ERRORS: Kinds = (PreviousResponseNotFound, ConversationLocked, QuotaExceeded)
_STATUS: Schema = {
    "enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
}
_METADATA: Schema = {"type": ["object", "null"], "additionalProperties": TEXT}
_LIST_FIELDS: dict[str, Schema] = {
    "object": {"const": "list"},
    "data": array(ref("Item")),
    "first_id": TEXT,
    "last_id": TEXT,
    "has_more": YES_NO,
}

RESPONSE_SCHEMAS: dict[str, Schema] = {
    "Item": obj(
        "type",
        id=TEXT,
        type=TEXT | {"description": "message, function_call, function_call_output, reasoning, ..."},
        role=TEXT,
        content={"type": ["string", "array", "null"]},
    ),
    "ResponseRequest": obj(
        "input",
        model=TEXT | {"description": "one of GET /v1/models"},
        input={"anyOf": [TEXT, array(ANYTHING)]},
        instructions=MAYBE_TEXT,
        stream=YES_NO | {"default": False, "description": "server-sent events"},
        background=YES_NO | {"default": False, "description": "answer at once; retrieve it later"},
        store=YES_NO | {"default": True, "description": "keep it, so that it can be retrieved"},
        previous_response_id=MAYBE_TEXT | {"description": "the stored response that it continues"},
        conversation={"anyOf": [TEXT, obj("id", id=TEXT), {"type": "null"}]},
        max_output_tokens={"type": ["integer", "null"]},
        temperature=MAYBE_NUMBER,
        top_p=MAYBE_NUMBER,
        tools=array(ANYTHING),
        tool_choice={"type": ["string", "object"]},
        text=MAYBE_OBJECT,
        reasoning=MAYBE_OBJECT,
        metadata=_METADATA,
        service_tier={"enum": ["auto", "default", "flex", "priority", None]},
    )
    | {
        "description": "vLLM's fields; unknown ones are ignored, as by vLLM.",
        "example": {"model": "flotilla-demo", "input": "What is Flotilla?"},
    },
    "Response": obj(
        "id object created_at model status output",
        id=TEXT,
        object={"const": "response"},
        created_at=WHOLE,
        model=TEXT,
        status=_STATUS,
        output=array(ref("Item")),
        error=MAYBE_OBJECT,
        incomplete_details=MAYBE_OBJECT,
        background=YES_NO,
        previous_response_id=MAYBE_TEXT,
        conversation=MAYBE_OBJECT,
        usage=MAYBE_OBJECT,
    ),
    "DeletedResponse": obj("id object deleted", id=TEXT, object={"const": "response"}),
    "ItemList": obj("object data first_id last_id has_more", **_LIST_FIELDS),
    "ConversationRequest": obj("", items=array(ANYTHING), metadata=_METADATA),
    "Conversation": obj(
        "id object created_at metadata",
        id=TEXT,
        object={"const": "conversation"},
        created_at=WHOLE,
        metadata=ANYTHING,
    ),
    "DeletedConversation": obj(
        "id object deleted", id=TEXT, object={"const": "conversation.deleted"}
    ),
}
