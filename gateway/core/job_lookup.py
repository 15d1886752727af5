"""Finds a tenant's job by its id."""

from __future__ import annotations

from gateway.gateway_settings import GatewaySettings
from shared.job.errors import NotFound
from shared.job.job import Job
from shared.store.queue import Queue
from shared.tenants.api_key import ApiKey
from shared.tenants.scopes import Scope


async def job_of(queue: Queue, settings: GatewaySettings, tenant: str, job_id: str) -> Job:
    """The tenant's job with this id. Raises NotFound, and StoreError."""
    [job] = await queue.get(job_id)
    # Another tenant's job must look as if it did not exist.
    if job is None or job.tenant != tenant:
        raise no_such_job(settings, job_id)
    return job


async def own_or_any_job(queue: Queue, settings: GatewaySettings, key: ApiKey, job_id: str) -> Job:
    """The job of the key's tenant with this id; without the scope `jobs`, only if the key itself
    has submitted it. Raises as `job_of`.
    """
    job = await job_of(queue, settings, key.tenant, job_id)
    if Scope.JOBS not in key.scopes and job.key != key.id:
        raise no_such_job(settings, job_id)
    return job


async def any_job_of(queue: Queue, settings: GatewaySettings, job_id: str) -> Job:
    """The job with this id, of whatever tenant: for operators. Raises as `job_of`."""
    [job] = await queue.get(job_id)
    if job is None:
        raise no_such_job(settings, job_id)
    return job


def no_such_job(settings: GatewaySettings, job_id: str) -> NotFound:
    """The error for an id of no job, or of another tenant's."""
    kept, kept_attached = settings.result_ttl_s, settings.stream_ttl_s
    return NotFound(
        f"There is no job {job_id[:64]!r}: the id is wrong, or it has expired. A job is kept for "
        f"{_duration(kept)} after its end, the job of a /v1 call for {_duration(kept_attached)}."
    )


def _duration(seconds: float) -> str:
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:g} h"
    return f"{seconds / 60:g} min" if seconds >= 120 else f"{seconds:g} s"
