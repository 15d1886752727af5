"""Routes of Anthropic's batches. What they make runs as OpenAI's batches do."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response

from gateway.apis.anthropic.batch_requests import check_size
from gateway.apis.anthropic.message_batch import (
    PATH,
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchList,
    is_archived,
)
from gateway.apis.anthropic.message_results import results
from gateway.apis.anthropic.new_message_batch import new_message_batch
from gateway.core.context import Gateway, GatewayDep, TenantDep
from gateway.core.incoming import Incoming
from gateway.core.receiver import received
from gateway.description.endpoint_route import LIMIT_ERRORS
from gateway.description.schema import errors_in, ref, shows, takes
from gateway.files.files import Files
from gateway.http.body import check_type
from gateway.http.body_parts import BodyParts
from gateway.http.content_response import attachment, streamed
from gateway.http.middleware import IS_HEAD
from shared.api.endpoint import BodyKind
from shared.batches.batch import Batch, BatchStatus, is_message_batch_id
from shared.job import errors
from shared.store.redis.batch_records import BatchRecords, Kind


def _check(gateway: GatewayDep, beta: Annotated[str, Query(max_length=10)] = "") -> None:
    """`beta`: what Anthropic's SDKs send for `client.beta`; the answers are the same."""
    _ = gateway.of(Files).storage  # 501 without one


router = APIRouter(
    prefix=PATH,
    tags=["Anthropic"],
    dependencies=[Depends(_check)],
    responses=errors_in(errors.StorageNotConfigured),
)


@router.post(
    "",
    openapi_extra=takes(ref("MessageBatchRequest"))
    | shows(
        "MessageBatch",
        errors=(
            errors.StorageUnavailable,
            errors.StorageQuotaExceeded,
            errors.TooManyBatches,
            *LIMIT_ERRORS,
        ),
    ),
)
async def create(request: Request, gateway: GatewayDep) -> Response:
    """Run requests at their own pace, for 24 hours at most. At most 100,000, in 256 MiB."""
    body = BodyParts(request.scope, request.receive, gateway.settings.body_timeout_s)

    async def store() -> Response:
        check_type(dict(request.scope["headers"]), BodyKind.JSON)
        batch = await new_message_batch(gateway, Incoming.of(request), body)
        return JSONResponse(MessageBatch.of(batch, batch.created_at).model_dump(mode="json"))

    return await received(gateway, request, body, check_size, store)


@router.get("")
async def list_batches(
    gateway: GatewayDep,
    tenant: TenantDep,
    before_id: Annotated[str, Query(max_length=100)] = "",
    after_id: Annotated[str, Query(max_length=100)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> MessageBatchList:
    """The tenant's batches, newest first: `after_id` continues with older ones."""
    if before_id and after_id:
        raise errors.BadRequest("`before_id` and `after_id` exclude each other.", "before_id")
    found, has_more = await BatchRecords(gateway.queue).list(
        tenant, Kind.MESSAGES, limit, after_id, before_id
    )
    now_s = gateway.fleet.now_s()
    return MessageBatchList(
        data=[MessageBatch.of(batch, now_s) for batch in found],
        first_id=found[0].id if found else None,
        last_id=found[-1].id if found else None,
        has_more=has_more,
    )


@router.get("/{batch_id}")
async def retrieve(batch_id: str, gateway: GatewayDep, tenant: TenantDep) -> MessageBatch:
    """A batch now. It is kept for 30 days after its end."""
    return MessageBatch.of(await _batch(gateway, tenant, batch_id), gateway.fleet.now_s())


@router.post("/{batch_id}/cancel", openapi_extra=shows("", errors=(errors.BatchEnded,)))
async def cancel(batch_id: str, gateway: GatewayDep, tenant: TenantDep) -> MessageBatch:
    """Ask for the end of a batch. What its requests have answered by then is in the results."""
    await _batch(gateway, tenant, batch_id)
    batch = await BatchRecords(gateway.queue).cancel(tenant, batch_id)
    if batch is None:
        raise _no_such_batch(batch_id)
    if batch.status.ended and batch.status is not BatchStatus.CANCELLED:  # twice is no error
        raise errors.BatchEnded("This batch has ended, so it can't be canceled.")
    return MessageBatch.of(batch, gateway.fleet.now_s())


@router.delete("/{batch_id}")
async def delete(batch_id: str, gateway: GatewayDep, tenant: TenantDep) -> DeletedMessageBatch:
    """Delete a batch that has ended, with its results."""
    batch = await _batch(gateway, tenant, batch_id)
    if not batch.status.ended:
        raise errors.BadRequest("This batch has not ended; cancel it first.")
    # The batch goes last: after a crash it can be deleted again.
    for file_id in (batch.input_file_id, batch.output_file_id, batch.error_file_id):
        if file_id:
            await gateway.of(Files).delete(tenant, file_id)
    await BatchRecords(gateway.queue).delete(batch, Kind.MESSAGES)
    return DeletedMessageBatch(id=batch_id)


@router.get(
    "/{batch_id}/results",
    response_class=Response,
    responses={
        "200": {"content": {"application/x-jsonl": {}}},
        **errors_in(errors.BlobMissing, errors.StorageUnavailable),
    },
)
async def get_results(
    batch_id: str, request: Request, gateway: GatewayDep, tenant: TenantDep
) -> Response:
    """The results of a batch that has ended, a JSON object on each line, in any order."""
    batch, files = await _batch(gateway, tenant, batch_id), gateway.of(Files)
    if not batch.status.ended:
        raise errors.NotFound("This batch has not ended, so it has no results yet.")
    if is_archived(batch, gateway.fleet.now_s()):
        raise errors.NotFound("The results of this batch are not kept any more.")
    ids = filter(None, (batch.output_file_id, batch.error_file_id))
    stored = [await files.of(tenant, file_id) for file_id in ids]
    segments = [segment for file in stored for segment in file.segments]
    chunks = results(files.storage.read(segments))
    headers = attachment(f"{batch_id}_results.jsonl")
    if request.scope.get(IS_HEAD):
        return Response(None, headers=headers, media_type="application/x-jsonl")
    return await streamed(chunks, 200, headers, "application/x-jsonl")


async def _batch(gateway: Gateway, tenant: str, batch_id: str) -> Batch:
    """The tenant's batch with this id. Raises NotFound, and StoreError."""
    if is_message_batch_id(batch_id):
        batch = await BatchRecords(gateway.queue).get(tenant, batch_id)
        if batch is not None:
            return batch
    raise _no_such_batch(batch_id)


def _no_such_batch(batch_id: str) -> errors.NotFound:
    return errors.NotFound(f"There is no batch {batch_id[:64]!r}: the id is wrong, or it is gone.")
