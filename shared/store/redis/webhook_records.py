"""Webhook endpoints in Redis. They lie in the first shard, as batches do; every shard knows which
tenants have any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shared.job.errors import BadRequest, TooManyWebhooks
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.webhooks.webhook_endpoint import MOST_ENDPOINTS, WebhookEndpoint

SHARD = 0


class WebhookRecords:
    """The webhook endpoints of all tenants. Methods raise StoreError."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._redis = queue.servers.of(SHARD)

    async def create(self, endpoint: WebhookEndpoint) -> None:
        """Store a new endpoint. Events that come behind this go to it. Raises TooManyWebhooks."""
        await self._write_down(endpoint.tenant)  # if a shard is away, nothing is stored
        arguments = (
            endpoint.id, endpoint.tenant, MOST_ENDPOINTS, int(endpoint.created_at * 1e6),
            *_flat(endpoint),
        )  # fmt: skip
        if not await self._queue.run("store_webhook", SHARD, arguments):
            raise TooManyWebhooks(
                f"You have {MOST_ENDPOINTS} webhook endpoints, as many as you may; delete one."
            )
        await self._write_down(endpoint.tenant)  # the last of the others may have been deleted

    async def replace(self, endpoint: WebhookEndpoint) -> bool:
        """Change an endpoint; False if it is gone."""
        arguments = (endpoint.id, endpoint.tenant, "", "", *_flat(endpoint))
        return bool(await self._queue.run("store_webhook", SHARD, arguments))

    async def delete(self, tenant: str, endpoint_id: str) -> bool:
        """Delete an endpoint with its deliveries; False if the tenant has no such endpoint."""
        left = await self._queue.run("delete_webhook", SHARD, (endpoint_id, tenant))
        if left == 0:
            pipeline = self._queue.servers.pipeline()
            for shard in range(self._queue.shards):
                pipeline.of(shard).srem(_tenants(shard), tenant)
            await pipeline.execute()
            if await self._redis.zcard(keys.first(keys.WEBHOOKS, tenant)):
                await self._write_down(tenant)
        return left is not None

    async def get(self, tenant: str, endpoint_id: str) -> WebhookEndpoint | None:
        """None if the tenant has no such endpoint."""
        raw = await self._redis.hgetall(keys.first(keys.WEBHOOK, endpoint_id))
        found = parse_endpoint(endpoint_id, raw)
        return found if found and found.tenant == tenant else None

    async def list(self, tenant: str) -> Sequence[WebhookEndpoint]:
        """All of the tenant's, newest first."""
        raw = await self._redis.zrevrange(keys.first(keys.WEBHOOKS, tenant), 0, -1)
        ids = [each.decode() for each in raw]
        pipeline = self._redis.pipeline(transaction=False)
        for each in ids:
            pipeline.hgetall(keys.first(keys.WEBHOOK, each))
        found = map(parse_endpoint, ids, await pipeline.execute()) if ids else ()
        return [endpoint for endpoint in found if endpoint]

    async def place_of(self, endpoint_id: str) -> float | None:
        """When an endpoint was made that was deleted lately; None: it was not."""
        place = await self._redis.get(keys.first(keys.GONE, endpoint_id))
        return None if place is None else int(place) / 1e6

    async def check_ids(self, tenant: str, endpoint_ids: Sequence[str], param: str) -> None:
        """Raise BadRequest unless all of these are the tenant's; `param`: where they stand."""
        pipeline = self._redis.pipeline(transaction=False)
        for each in endpoint_ids:
            pipeline.hget(keys.first(keys.WEBHOOK, each), "tenant")
        owners = await pipeline.execute() if endpoint_ids else ()
        for each, owner in zip(endpoint_ids, owners, strict=True):
            if owner is None or owner.decode() != tenant:
                raise BadRequest(f"There is no webhook endpoint {each[:64]!r}.", param)

    async def _write_down(self, tenant: str) -> None:
        """Have all shards know that the tenant has endpoints."""
        pipeline = self._queue.servers.pipeline()
        for shard in range(self._queue.shards):
            pipeline.of(shard).sadd(_tenants(shard), tenant)
        await pipeline.execute()


def _tenants(shard: int) -> str:
    return keys.base(shard) + keys.WEBHOOK_TENANTS


def _flat(endpoint: WebhookEndpoint) -> list[str | float]:
    fields: dict[str, str | float] = {
        "name": endpoint.name,
        "url": endpoint.url,
        "event_types": " ".join(endpoint.event_types),
        "secret": endpoint.secret,
        "old_secret": endpoint.old_secret,
        "old_until": endpoint.old_until,
        "created_at": endpoint.created_at,
        "updated_at": endpoint.updated_at,
        "disabled": endpoint.disabled,
    }
    return [word for pair in fields.items() for word in pair]


def parse_endpoint(endpoint_id: str, raw: Mapping[bytes, bytes]) -> WebhookEndpoint | None:
    """An endpoint from its record; None if there is none."""
    if b"tenant" not in raw or b"url" not in raw:
        return None
    text = {name.decode(): value.decode() for name, value in raw.items()}
    return WebhookEndpoint(
        id=endpoint_id,
        tenant=text["tenant"],
        name=text["name"],
        url=text["url"],
        event_types=tuple(text["event_types"].split()),
        secret=text["secret"],
        created_at=float(text["created_at"]),
        updated_at=float(text["updated_at"]),
        old_secret=text["old_secret"],
        old_until=float(text["old_until"]),
        disabled=text["disabled"],
    )
