"""Webhook endpoints of tenants."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter

from shared.job.errors import BadRequest, NotFound, TooManyWebhooks
from shared.store.documents import Documents, Kind, LimitReached
from shared.store.queue import Queue
from shared.webhooks.webhook_endpoint import MOST_ENDPOINTS, WebhookEndpoint

_KIND = Kind("webhook", TypeAdapter(WebhookEndpoint), lambda endpoint: endpoint.tenant)


class WebhookRecords:
    """The webhook endpoints of all tenants. Methods raise StoreError."""

    def __init__(self, queue: Queue) -> None:
        self.documents = Documents(queue, _KIND)

    async def create(self, endpoint: WebhookEndpoint) -> None:
        """Store a new endpoint. Events that come behind this go to it. Raises TooManyWebhooks."""
        try:
            await self.documents.add(
                endpoint.id, endpoint, at=endpoint.created_at, most=MOST_ENDPOINTS
            )
        except LimitReached:
            raise TooManyWebhooks(
                f"You have {MOST_ENDPOINTS} webhook endpoints, as many as you may; delete one."
            ) from None

    async def disable(self, endpoint: WebhookEndpoint, why: str) -> None:
        """Send nothing to it any more, unless its URL has been changed."""
        await self.documents.change(
            endpoint.id,
            lambda now: now._replace(disabled=why) if now.url == endpoint.url else now,
        )

    async def delete(self, tenant: str, endpoint_id: str) -> bool:
        """Delete an endpoint with its deliveries; False if the tenant has no such endpoint."""
        deleted = await self.documents.delete(endpoint_id, lambda found: found.tenant == tenant)
        return deleted is not None

    async def get(self, tenant: str, endpoint_id: str) -> WebhookEndpoint | None:
        """None if the tenant has no such endpoint."""
        found = await self.documents.get(endpoint_id)
        return found if found and found.tenant == tenant else None

    async def list(self, tenant: str, after: str, limit: int) -> tuple[list[WebhookEndpoint], bool]:
        """At most `limit` of the tenant's behind `after`, newest first, and whether there are more.

        Raises NotFound if it has no endpoint `after`, and has deleted none lately.
        """
        page = await self.documents.page(after, limit, tenant=tenant)
        if page is None:
            raise NotFound(f"There is no webhook endpoint {after[:64]!r}.")
        return page

    async def check_ids(self, tenant: str, endpoint_ids: Sequence[str], param: str) -> None:
        """Raise BadRequest unless all of these are the tenant's; `param`: where they stand."""
        found = await self.documents.some(endpoint_ids)
        for each in endpoint_ids:
            if each not in found or found[each].tenant != tenant:
                raise BadRequest(f"There is no webhook endpoint {each[:64]!r}.", param)
