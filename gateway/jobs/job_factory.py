"""Builds a new job from an admitted request. `submitter.py` puts it into the queue."""

from __future__ import annotations

from collections.abc import Callable

from gateway.jobs.admission import CheckedRequest
from shared.api.endpoints import Endpoint
from shared.platform.settings import Settings
from shared.protocol.job import Job, NewJob, new_job_id, shard_in

_ID_TRIES = 16


class JobFactory:
    """Makes the jobs of one gateway process."""

    def __init__(
        self, settings: Settings, gateway_id: str, reachable: Callable[[int], bool]
    ) -> None:
        """`reachable`: whether the Redis server of a shard can be reached now."""
        self._settings = settings
        self._gateway_id = gateway_id
        self._reachable = reachable

    def attached(
        self, endpoint: Endpoint, tenant: str, pool: str, request: CheckedRequest, body: bytes
    ) -> NewJob:
        """A job whose client waits for the answer, which is sent to this gateway."""
        ttl_s, gateway_id = self._settings.stream_ttl_s, self._gateway_id
        return self._job(endpoint, tenant, pool, request, body, ttl_s, gateway_id)

    def detached(
        self, endpoint: Endpoint, tenant: str, pool: str, request: CheckedRequest, body: bytes
    ) -> NewJob:
        """A job whose answer is fetched later, or never."""
        return self._job(endpoint, tenant, pool, request, body, self._settings.result_ttl_s, "")

    def repeated(self, job: Job, body: bytes, new_id: str | None) -> NewJob:
        """A detached job with the request of one that has ended. `new_id`: None for a new one."""
        return NewJob(
            id=new_id or self._job_id(),
            tenant=job.tenant,
            pool=job.pool,
            lane=job.lane,
            model=job.model,
            endpoint=job.endpoint,
            body=body,
            stream=job.stream,
            ttl_s=self._settings.result_ttl_s,
            max_attempts=self._settings.max_attempts,
            deadline_s=job.total_deadline_s,
            metadata=job.metadata,
            run_deadline_s=job.run_deadline_s,
            queue_deadline_s=job.queue_deadline_s,
            retried_from=job.id,
        )

    def _job(
        self,
        endpoint: Endpoint,
        tenant: str,
        pool: str,
        request: CheckedRequest,
        body: bytes,
        ttl_s: float,
        gateway_id: str,
    ) -> NewJob:
        return NewJob(
            id=self._job_id(),
            tenant=tenant,
            pool=pool,
            lane=request.lane,
            model=request.model,
            endpoint=endpoint.path,
            body=body,
            stream=request.stream,
            ttl_s=ttl_s,
            max_attempts=self._settings.max_attempts,
            gateway=gateway_id,
        )

    def _job_id(self) -> str:
        """An id in a shard whose Redis server can be reached, if a few tries find one."""
        for _ in range(_ID_TRIES):
            job_id = new_job_id(self._settings.shards)
            if self._reachable(shard_in(job_id)):
                break
        return job_id
