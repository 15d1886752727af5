"""The schemas of what is asked about a job, by name."""

from __future__ import annotations

from gateway.core.schema import (
    ANYTHING,
    MAYBE_NUMBER,
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

_STATE: Schema = {"enum": [state.value for state in JobState]}
JOB_SCHEMAS: dict[str, Schema] = {
    "JobList": obj(
        "object data has_more next_cursor",
        object={"const": "list"},
        data=array(ref("Job")),
        has_more=YES_NO,
        next_cursor=MAYBE_TEXT,
    ),
    "Timeline": obj(
        "object job state events spans",
        object={"const": "timeline"},
        job=TEXT,
        state=_STATE,
        events=array(obj("at event worker text", at=NUMBER, event=TEXT, worker=TEXT, text=TEXT)),
        spans=array(
            obj(
                "name start end attempt worker",
                name={"enum": ["queue", "prefill", "decode", "run", "pause"]},
                start=NUMBER,
                end=MAYBE_NUMBER | {"description": "null: it goes on"},
                attempt=WHOLE,
                worker=TEXT,
            )
        ),
    ),
    "Why": obj(
        "object job state sentence facts",
        object={"const": "why"},
        job=TEXT,
        state=_STATE,
        sentence=TEXT,
        facts=array(obj("name text", name=TEXT, text=TEXT)),
    ),
    "JobRequestKept": obj(
        "object job endpoint body",
        object={"const": "job.request"},
        job=TEXT,
        endpoint=TEXT,
        body=ANYTHING,
    ),
    "RetryRequest": obj(
        "", body=ANYTHING | {"description": "sent in place of the old request's body"}
    ),
    "Bulk": obj(
        "object action filter dry_run matched done skipped ids new_ids more next_cursor",
        object={"const": "bulk"},
        action={"enum": ["cancel", "retry"]},
        filter=TEXT,
        dry_run=YES_NO,
        matched=WHOLE | {"description": "jobs of this call: 1000 at most"},
        done=WHOLE,
        skipped=WHOLE | {"description": "those that ended meanwhile, or whose request is gone"},
        ids=array(TEXT) | {"description": "of the first 100 that matched"},
        new_ids=array(TEXT) | {"description": "of the first 100 new jobs"},
        more=YES_NO,
        next_cursor=MAYBE_TEXT,
    ),
}
