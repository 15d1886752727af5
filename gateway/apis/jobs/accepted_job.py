"""The answer to a request whose job is fetched later: 202 with the job."""

from __future__ import annotations

from gateway.core.context import Gateway
from gateway.core.job_lookup import job_of
from gateway.core.new_call import NewCall
from gateway.core.send_body import BodyResponse
from shared.job.errors import NotFound
from shared.job.job import Job
from shared.store.answers import Body, read_again


async def accepted(gateway: Gateway, call: NewCall) -> BodyResponse:
    """Submit the job of a call, or join the earlier one that the call repeats, and answer."""
    new = call.job
    joined = call.joined or await gateway.submitter.submit(new)

    async def read_back() -> tuple[Job, Body, dict[str, str]]:
        """The job as it is in Redis now, submitted again if Redis has lost it meanwhile."""
        try:
            job = await job_of(gateway.queue, gateway.settings, new.tenant, joined or new.id)
        except NotFound:
            if joined:
                raise
            await gateway.submitter.submit(new)  # a replica without it is the master now
            job = await job_of(gateway.queue, gateway.settings, new.tenant, new.id)
        return job, *await gateway.streams.job_object(job)

    # An error would have the client make a second job.
    job, body, headers = await read_again(read_back)
    headers |= {
        "x-flotilla-job-id": job.id,
        "location": f"/jobs/{job.id}",
        "retry-after": "1",
    }
    if call.taken:
        headers |= {name.decode(): value.decode() for name, value in call.taken.headers()}
    if joined:
        headers["idempotent-replayed"] = "true"
    return BodyResponse(body, 202, headers)
