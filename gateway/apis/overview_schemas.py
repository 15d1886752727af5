"""The schemas of the overview, and of what is asked about a job (`openapi.py`)."""

from __future__ import annotations

from gateway.apis.jobs.bulk import BulkRequest
from gateway.apis.schema import (
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
from shared.job.states import JobState, WorkerState

_STATE: Schema = {"enum": [state.value for state in JobState]}
_REASON = MAYBE_TEXT | {"description": "for the audit log"}
_PERCENTILES = obj("p50 p95 p99", p50=MAYBE_NUMBER, p95=MAYBE_NUMBER, p99=MAYBE_NUMBER)
_MAYBE_PERCENTILES: Schema = {"anyOf": [_PERCENTILES, {"type": "null"}]}
_BULK_BODY = BulkRequest.model_json_schema()
_BULK_BODY["properties"]["reason"] = _REASON

OVERVIEW_SCHEMAS: dict[str, Schema] = {
    "Overview": obj(
        "object at gateway engines simulated verdict rates pools workers latency history "
        "dead_letters redis",
        object={"const": "overview"},
        at=NUMBER | {"description": "Unix seconds by Redis' clock"},
        gateway=obj("id version", id=TEXT, version=TEXT),
        engines=array(TEXT),
        simulated=YES_NO | {"description": "answers of at least one worker are simulated"},
        verdict=obj(
            "level sentence since problems recovered",
            level={"enum": ["ok", "warning", "problem"]},
            sentence=TEXT,
            since=MAYBE_NUMBER,
            problems=array(ref("Problem")),
            recovered=array(ANYTHING) | {"description": "that ended in the last hour"},
        ),
        rates=obj(
            "submitted completed failed cancelled prompt_tokens output_tokens",
            submitted=MAYBE_NUMBER,
            completed=MAYBE_NUMBER,
            failed=MAYBE_NUMBER,
            cancelled=MAYBE_NUMBER | {"description": "those that expired included"},
            prompt_tokens=MAYBE_NUMBER | {"description": "of jobs that have ended"},
            output_tokens=MAYBE_NUMBER,
        )
        | {"description": "per second, over the last 10 s; null: not known yet"},
        pools=array(ref("PoolOverview")),
        workers=array(ref("WorkerOverview")),
        latency=obj(
            "ttft_s itl_s queue_wait_s e2e_s since source",
            ttft_s=_MAYBE_PERCENTILES,
            itl_s=_MAYBE_PERCENTILES,
            queue_wait_s=_MAYBE_PERCENTILES,
            e2e_s=_MAYBE_PERCENTILES,
            since=MAYBE_NUMBER | {"description": "null: since the processes began"},
            source={"type": "object", "additionalProperties": TEXT},
        )
        | {"description": "seconds; estimates from histograms, of the last 5 minutes"},
        history=obj(
            "step_s from waiting running output_tokens submitted",
            **{"from": MAYBE_NUMBER | {"description": "time of the first point"}},
            step_s=WHOLE,
            waiting=array(MAYBE_NUMBER),
            running=array(MAYBE_NUMBER),
            output_tokens=array(MAYBE_NUMBER),
            submitted=array(MAYBE_NUMBER),
        )
        | {"description": "the last 15 minutes; null where the overview was not read"},
        dead_letters=WHOLE,
        redis=obj(
            "ok error used_memory max_memory evicts",
            ok=YES_NO,
            error=MAYBE_TEXT,
            used_memory=WHOLE,
            max_memory=WHOLE | {"description": "0: no limit"},
            evicts=MAYBE_TEXT,
        ),
    ),
    "Problem": obj(
        "kind level sentence since pool worker action runbook",
        kind=TEXT,
        level={"enum": ["warning", "problem"]},
        sentence=TEXT,
        since=MAYBE_NUMBER,
        pool=TEXT,
        worker=TEXT,
        action=MAYBE_OBJECT | {"description": "`{text, method, path, body}`: what mends it"},
        runbook=TEXT,
    ),
    "PoolOverview": obj(
        "pool models paused intake_stopped waiting running slots busy workers_ready "
        "workers_starting oldest_wait_s estimated_wait_s wait_reason lanes tenants scale",
        pool=TEXT,
        models=array(TEXT),
        paused=YES_NO | {"description": "its workers claim nothing"},
        intake_stopped=YES_NO | {"description": "new requests are refused"},
        waiting=WHOLE,
        running=WHOLE | {"description": "jobs that a worker has"},
        slots=WHOLE,
        busy=WHOLE | {"description": "sequences in the engines"},
        workers_ready=WHOLE,
        workers_starting=WHOLE,
        oldest_wait_s=NUMBER,
        estimated_wait_s=MAYBE_NUMBER | {"description": "of a job submitted now; null: unknown"},
        wait_reason=TEXT | {"description": "why no worker is ready, if so"},
        lanes=array(obj("lane waiting oldest_wait_s", lane=TEXT, waiting=WHOLE)),
        tenants=array(obj("tenant waiting running", tenant=TEXT, waiting=WHOLE, running=WHOLE))
        | {"description": "of several tenants with many jobs, an estimate from a sample"},
        scale=MAYBE_OBJECT | {"description": "the autoscaler's decision, if it has made one"},
    ),
    "WorkerOverview": obj(
        "id pool state reason phase phase_s engine slots busy kv_use heartbeat_age_s "
        "output_tokens_per_s jobs adapters models lost",
        id=TEXT,
        pool=TEXT,
        state={"enum": [*(state.value for state in WorkerState), "lost"]},
        reason=TEXT,
        phase=TEXT,
        phase_s=MAYBE_NUMBER | {"description": "how long it has loaded its model"},
        engine=TEXT,
        slots=WHOLE,
        busy=WHOLE,
        kv_use=MAYBE_NUMBER | {"description": "share of the KV cache in use"},
        heartbeat_age_s=MAYBE_NUMBER,
        output_tokens_per_s=MAYBE_NUMBER,
        jobs=array(TEXT) | {"description": "64 at most"},
        adapters=array(TEXT),
        models=array(TEXT),
        lost=YES_NO,
        lost_since=MAYBE_NUMBER,
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
    "BulkRequest": _BULK_BODY,
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
    "KeyList": obj(
        "object data",
        object={"const": "list"},
        data=array(
            obj(
                "name tenant operator keys jobs_kept conversations_kept bytes_kept last_job_at "
                "usage",
                name=TEXT,
                tenant=TEXT,
                operator=YES_NO,
                keys=WHOLE,
                jobs_kept=WHOLE,
                conversations_kept=WHOLE,
                bytes_kept=WHOLE,
                last_job_at=MAYBE_NUMBER,
                usage=MAYBE_OBJECT | {"description": "in the last hour"},
            )
        ),
    ),
}
