"""The schemas of bodies in the API's description (`openapi.py`), by name."""

from __future__ import annotations

from gateway.apis.overview_schemas import OVERVIEW_SCHEMAS
from gateway.core.endpoint_route import ON_DISCONNECT
from gateway.core.schema import (
    ANYTHING,
    MAYBE_NUMBER,
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
from shared.job.states import JobState
from shared.store.redis.dead_letters import KINDS

_REQUEST_FIELDS: dict[str, Schema] = {
    "model": MAYBE_TEXT | {"description": "one of GET /v1/models; without it the default"},
    "stream": YES_NO | {"default": False, "description": "server-sent events"},
    "stream_options": obj("", include_usage=YES_NO),
    "max_tokens": WHOLE,
    "temperature": NUMBER,
    "top_p": NUMBER,
    "n": WHOLE,
    "seed": WHOLE,
    "stop": {"anyOf": [TEXT, array(TEXT)]},
    "service_tier": {
        "enum": ["auto", "default", "flex", "priority", None],
        "description": "selects the lane in which the request waits; the answer names it",
    },
    "flotilla": obj("", on_disconnect=TEXT | {"description": ON_DISCONNECT}),
}
_RESPONSE_FIELDS: dict[str, Schema] = {
    "id": TEXT,
    "object": TEXT,
    "created": WHOLE,
    "model": TEXT,
    "usage": MAYBE_OBJECT,
    "service_tier": MAYBE_TEXT,
}
_CHOICE: dict[str, Schema] = {"index": WHOLE, "finish_reason": MAYBE_TEXT}

SCHEMAS: dict[str, Schema] = {
    **OVERVIEW_SCHEMAS,
    "Error": obj(
        "error",
        error=obj(
            "message type param code",
            message=TEXT,
            type=TEXT,
            param=MAYBE_TEXT,
            code={"type": ["string", "integer", "null"]},
        ),
    ),
    "ChatRequest": obj(
        "messages",
        **_REQUEST_FIELDS,
        messages=array(obj("role", role=TEXT, content={"type": ["string", "array", "null"]})),
        max_completion_tokens=WHOLE,
        tools=array(ANYTHING),
        tool_choice={"type": ["string", "object"]},
        response_format=ANYTHING,
        logprobs=YES_NO,
        top_logprobs=WHOLE,
    )
    | {
        "description": "vLLM's fields; unknown ones are ignored, as by vLLM.",
        "example": {
            "model": "flotilla-demo",
            "messages": [{"role": "user", "content": "What is Flotilla?"}],
        },
    },
    "ChatCompletion": obj(
        "id object created model choices",
        **_RESPONSE_FIELDS,
        choices=array(
            obj(
                "index message finish_reason",
                **_CHOICE,
                message=obj("role", role=TEXT, content=MAYBE_TEXT),
            )
        ),
    ),
    "BatchChatRequest": obj(
        "messages",
        **_REQUEST_FIELDS,
        messages=array(array(obj("role", role=TEXT))),
        max_completion_tokens=WHOLE,
        response_format=ANYTHING,
    )
    | {"description": "`messages` is a list of conversations; no streams, no tools, `n` is 1."},
    "CompletionRequest": obj(
        "prompt",
        **_REQUEST_FIELDS,
        prompt={"anyOf": [TEXT, {"type": "array"}]},
        logprobs=WHOLE,
        echo=YES_NO,
    )
    | {
        "description": "vLLM's fields; unknown ones are ignored, as by vLLM.",
        "example": {"model": "flotilla-demo", "prompt": "What is Flotilla?"},
    },
    "Completion": obj(
        "id object created model choices",
        **_RESPONSE_FIELDS,
        choices=array(obj("index text finish_reason", **_CHOICE, text=TEXT)),
    ),
    "Job": obj(
        "id object state endpoint model pool lane stream metadata created_at links",
        id=TEXT,
        object={"const": "job"},
        state={"enum": [state.value for state in JobState]},
        endpoint=TEXT,
        model=TEXT,
        pool=TEXT | {"description": "whose workers run it; an adapter has a queue of its own"},
        lane=TEXT,
        tenant=TEXT,
        worker=MAYBE_TEXT | {"description": "of its last attempt"},
        stream=YES_NO,
        metadata={"type": "object", "additionalProperties": TEXT},
        created_at=NUMBER | {"description": "Unix seconds"},
        started_at=MAYBE_NUMBER,
        finished_at=MAYBE_NUMBER,
        deadline_at=MAYBE_NUMBER | {"description": "the deadline that applies now"},
        expires_at=MAYBE_NUMBER,
        queue_deadline_s=MAYBE_NUMBER | {"description": "from submit to the first start"},
        run_deadline_s=MAYBE_NUMBER | {"description": "from the first start to the end"},
        retried_from=MAYBE_TEXT | {"description": "the job whose request this one repeats"},
        attempts=array(ANYTHING),
        usage=MAYBE_OBJECT,
        text_omitted=TEXT | {"description": "why there is no text, if it is too long"},
        usage_so_far=MAYBE_OBJECT | {"description": "while `usage` is null"},
        status_code={"type": ["integer", "null"]},
        error=MAYBE_OBJECT,
        trace_id=MAYBE_TEXT | {"description": "of its trace, if the request is traced"},
        request_id=MAYBE_TEXT | {"description": "the client's own `x-request-id`"},
        links=ANYTHING,
        position={"type": ["integer", "null"], "description": "while it is queued"},
        estimated_wait_s=MAYBE_NUMBER | {"description": "null: unknown"},
        wait_reason=TEXT | {"description": "if no worker is ready, or it has to run alone"},
        text=TEXT | {"description": "the first choice so far"},
        choices=array(ANYTHING),
        result=ANYTHING | {"description": "the whole answer, if it was not streamed"},
    ),
    "JobList": obj(
        "object data has_more next_cursor",
        object={"const": "list"},
        data=array(ref("Job")),
        has_more=YES_NO,
        next_cursor=MAYBE_TEXT,
    ),
    "DeadLetter": obj(
        "id object created_at what reason subject job_id job attempts replayable values",
        id=TEXT,
        object={"const": "dead_letter"},
        created_at=NUMBER | {"description": "Unix seconds"},
        what={"enum": list(KINDS)},
        reason=TEXT,
        subject=TEXT | {"description": "the job's id, or a key in Redis"},
        job_id=MAYBE_TEXT,
        job=obj("", tenant=TEXT, pool=TEXT, model=TEXT, endpoint=TEXT),
        attempts=array(ANYTHING),
        replayable=YES_NO | {"description": "its job's request is still kept"},
        values={"type": "object", "additionalProperties": TEXT}
        | {"description": "what was set aside, 4 KiB of each value"},
    ),
    "DeadLetterList": obj(
        "object data has_more next_cursor",
        object={"const": "list"},
        data=array(ref("DeadLetter")),
        has_more=YES_NO,
        next_cursor=MAYBE_TEXT,
    ),
    "Replay": obj(
        "id object job_id retried_from tenant",
        id=TEXT,
        object={"const": "dead_letter.replay"},
        job_id=TEXT | {"description": "the new job"},
        retried_from=TEXT,
        tenant=TEXT,
    ),
    "Model": obj("id object", id=TEXT, object={"const": "model"}, flotilla=ANYTHING),
    "ModelList": obj("object data", object={"const": "list"}, data=array(ref("Model"))),
}
