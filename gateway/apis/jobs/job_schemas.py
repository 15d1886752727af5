"""The schemas of the jobs API's bodies and answers, by name."""

from __future__ import annotations

from gateway.description.schema import (
    ANYTHING,
    MAYBE_TEXT,
    TEXT,
    YES_NO,
    Schema,
    array,
    obj,
    ref,
)

JOB_SCHEMAS: dict[str, Schema] = {
    "JobList": obj(
        "object data has_more next_cursor",
        object={"const": "list"},
        data=array(ref("Job")),
        has_more=YES_NO,
        next_cursor=MAYBE_TEXT,
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
}
