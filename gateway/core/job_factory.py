"""Builds a new job from an admitted request. `submitter.py` puts it into the queue."""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import blake2b
from itertools import islice

from gateway.core.admission import CheckedRequest
from gateway.core.on_disconnect import keep_s
from gateway.gateway_settings import GatewaySettings
from shared.api.endpoint import Endpoint
from shared.fleet.pool import Pool
from shared.fleet.pools import Pools
from shared.fleet.registry import ModelInfo
from shared.job.job import NO_ORIGIN, IdempotencyKey, Job, NewJob, Origin, new_job_id_in
from shared.job.responses import shard_of_conversation
from shared.platform import request_span
from shared.webhooks.webhook_delivery import notify_of

_ID_TRIES = 16
_LOAD_FACTOR, _LOAD_MARGIN = 2, 16


class JobFactory:
    """Makes the jobs of one gateway process."""

    def __init__(
        self,
        settings: GatewaySettings,
        pools: Pools,
        gateway_id: str,
        is_served: Callable[[int], bool],
        load: Callable[[int], int] = lambda shard: 0,
    ) -> None:
        """`is_served`: whether jobs can be submitted to a shard now. `load`: how many of its
        jobs this gateway waits for."""
        self._load = load
        self._settings = settings
        self._gateway_id = gateway_id
        self._is_served = is_served
        self._pools = {pool.name: pool for pool in pools.all if pool.has_deadlines}

    def new(
        self,
        endpoint: Endpoint,
        tenant: str,
        model: ModelInfo,
        request: CheckedRequest,
        body: bytes,
        on_disconnect: str = "",
        idempotency: IdempotencyKey | None = None,
        *,
        attached: bool = True,
    ) -> NewJob:
        """The job of an admitted request, with the deadlines of its pool.

        `attached`: its client waits for the answer, which is sent to this gateway; else it fetches
        it later, or never. `on_disconnect`: as in on_disconnect.py. Raises BadRequest.
        """
        settings = self._settings
        kept_s = settings.disconnect_grace_s if attached else None
        if on_disconnect:
            kept_s = keep_s(on_disconnect)
        ttl_s = settings.stream_ttl_s if attached and kept_s is not None else settings.result_ttl_s
        job = NewJob(
            id=self._job_id(idempotency, request, tenant if attached else ""),
            tenant=tenant,
            pool=model.pool,
            lane=request.lane,
            model=request.model or model.name,
            endpoint=endpoint.path,
            body=body,
            stream=request.stream,
            ttl_s=ttl_s if idempotency is None else max(ttl_s, idempotency.job_ttl_s),
            max_attempts=settings.max_attempts,
            gateway=self._gateway_id if attached else "",
            keep_s=kept_s,
            idempotency=idempotency,
            origin=_origin(endpoint.path, model.name, model.pool, request.lane),
            weight=settings.weight(tenant),
        )
        pool = self._pools.get(model.pool) if self._pools else None
        return job if pool is None else with_deadlines(job, pool)

    def repeated(
        self,
        job: Job,
        body: bytes,
        new_id: str = "",
        idempotency: IdempotencyKey | None = None,
        on_disconnect: str = "",
    ) -> NewJob:
        """A job, without a client, with the request of one that has ended. `new_id`: empty for any.

        Raises BadRequest.
        """
        return NewJob(
            id=new_id or self._job_id(idempotency),
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
            keep_s=keep_s(on_disconnect) if on_disconnect else None,
            run_deadline_s=job.run_deadline_s,
            queue_deadline_s=job.queue_deadline_s,
            retried_from=job.id,
            notify=job.notify or notify_of("job"),
            idempotency=idempotency,
            origin=_origin(job.endpoint, job.model, job.pool, job.lane),
            weight=self._settings.weight(job.tenant),
        )

    def new_shard(self) -> int:
        """Of two random shards that are served, the one with less load."""
        n_shards = self._settings.shards
        if n_shards == 1:
            return 0
        tried = (random.randrange(n_shards) for _ in range(_ID_TRIES))
        found = islice(filter(self._is_served, tried), 2)
        return min(found, key=self._load, default=random.randrange(n_shards))

    def _shard_of(self, tenant: str, start: str) -> int:
        """The shard of all calls of a conversation that begins so, where one worker is warm for
        them; another one if it has far more load, as many conversations begin alike."""
        digest = blake2b(f"{tenant}\0{start}".encode(errors="replace"), digest_size=8).digest()
        own, other = int.from_bytes(digest) % self._settings.shards, self.new_shard()
        full = self._load(own) > _LOAD_FACTOR * self._load(other) + _LOAD_MARGIN
        return other if full or not self._is_served(own) else own

    def _job_id(
        self,
        idempotency: IdempotencyKey | None,
        request: CheckedRequest | None = None,
        waiting_tenant: str = "",
    ) -> str:
        """An id in the shard of the call's conversation, else in that of the key, else in that of
        other calls that begin like it, if its tenant waits for the answer, else in one that is
        served."""
        shards, prepared = self._settings.shards, request and request.prepared
        if prepared is not None and prepared.conversation:
            shard = shard_of_conversation(prepared.conversation)
            if shard is not None and shard < shards:
                return new_job_id_in(shard)
        if idempotency is not None:
            return new_job_id_in(idempotency.shard(shards))
        if waiting_tenant and request is not None and request.start:
            return new_job_id_in(self._shard_of(waiting_tenant, request.start))
        return new_job_id_in(self.new_shard())


def _origin(endpoint: str, model: str, pool: str, lane: str) -> Origin:
    """The origin of a job that the current request submits."""
    span = request_span.current()
    return NO_ORIGIN if span is None else Origin(span.submit(endpoint, model, pool, lane))


def with_deadlines(job: NewJob, pool: Pool) -> NewJob:
    """The job with its pool's deadlines; those of the request replace them later."""
    return job._replace(
        deadline_s=pool.deadline_s,
        queue_deadline_s=pool.queue_deadline_s,
        run_deadline_s=pool.run_deadline_s,
    )
