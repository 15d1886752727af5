"""The schemas that the routes of several APIs have: errors, jobs, models."""

from __future__ import annotations

from gateway.description.schema import (
    ANYTHING,
    MAYBE_NUMBER,
    MAYBE_OBJECT,
    MAYBE_TEXT,
    NUMBER,
    TEXT,
    YES_NO,
    Schema,
    array,
    obj,
    ref,
)
from shared.job.states import JobState

COMMON_SCHEMAS: dict[str, Schema] = {
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
        estimated_wait_range_s=array(NUMBER)
        | {"description": "in about four of five cases the wait is in it; absent: unknown"},
        wait_reason=TEXT | {"description": "if no worker is ready, or it has to run alone"},
        text=TEXT | {"description": "the first choice so far"},
        choices=array(ANYTHING),
        result=ANYTHING | {"description": "the whole answer, if it was not streamed"},
    ),
    "Model": obj("id object", id=TEXT, object={"const": "model"}, flotilla=ANYTHING),
    "ModelList": obj("object data", object={"const": "list"}, data=array(ref("Model"))),
}
