"""The answer to a request whose job is fetched later: 202 with the job."""

from __future__ import annotations

from gateway.core.call import NewCall
from gateway.core.context import Gateway
from gateway.core.job_lookup import job_of
from gateway.core.job_object import full
from gateway.core.send_body import BodyResponse


async def accepted(gateway: Gateway, call: NewCall) -> BodyResponse:
    """Submit the job of a call, or join the earlier one that the call repeats, and answer."""
    new = call.job
    joined = call.joined or await gateway.submitter.submit(new)
    # Read back: only Redis has its time of submission, and whether a worker has it already.
    job = await job_of(gateway.queue, gateway.settings, new.tenant, joined or new.id)
    headers = {
        "x-flotilla-job-id": job.id,
        "location": f"/jobs/{job.id}",
        "retry-after": "1",
    }
    if joined:
        gateway.metrics.replayed.inc()
        headers["idempotent-replayed"] = "true"
    return BodyResponse(await full(gateway.queue, gateway.fleet, job), 202, headers)
