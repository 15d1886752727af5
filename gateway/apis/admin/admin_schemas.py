"""The schemas of dead letters and of forgotten models in the API's description, by name."""

from __future__ import annotations

from gateway.description.schema import (
    ANYTHING,
    MAYBE_TEXT,
    NUMBER,
    TEXT,
    YES_NO,
    Schema,
    array,
    obj,
    ref,
)
from shared.store.redis.dead_letters import KINDS

ADMIN_SCHEMAS: dict[str, Schema] = {
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
        | {"description": "its latest attempts, and what it was"},
    ),
    "DeadLetterList": obj(
        "object data has_more next_cursor",
        object={"const": "list"},
        data=array(ref("DeadLetter")),
        has_more=YES_NO,
        next_cursor=MAYBE_TEXT,
    ),
    "ForgottenModel": obj(
        "id object deleted", id=TEXT, object={"const": "model"}, deleted={"const": True}
    ),
    "Replay": obj(
        "id object job_id retried_from tenant",
        id=TEXT,
        object={"const": "dead_letter.replay"},
        job_id=TEXT | {"description": "the new job"},
        retried_from=TEXT,
        tenant=TEXT,
    ),
}
