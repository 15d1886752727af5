"""Routes of batches: OpenAI's, and what a batch has done so far."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from gateway.apis.batches.batch_object import BatchList, BatchObject
from gateway.apis.batches.batch_request import BatchRequest, OutputExpiry, request_schema
from gateway.core.call import read_object
from gateway.core.context import Gateway, GatewayDep, TenantDep
from gateway.core.incoming import Incoming
from gateway.core.rate_limiter import take_request
from gateway.description.api import Api
from gateway.description.endpoint_route import LIMIT_ERRORS
from gateway.description.schema import errors_in, shows, takes
from gateway.files.files import Files
from gateway.http.content_response import content_response
from shared.batches.batch import MAX_OPEN, Batch, BatchStatus, is_batch_id, new_batch_id
from shared.job import errors
from shared.store.batch_records import BatchRecords, Which
from shared.store.files import Purpose, total_bytes
from shared.store.webhooks import WebhookRecords


def _check_storage(gateway: GatewayDep) -> None:
    _ = gateway.of(Files).storage  # 501 without one


router = APIRouter(
    prefix="/v1/batches",
    tags=["OpenAI"],
    dependencies=[Depends(_check_storage)],
    responses=errors_in(errors.StorageNotConfigured),
)

_CONTENT: dict[int | str, dict[str, Any]] = {
    "200": {"content": {"application/x-ndjson": {}}},
    **errors_in(errors.BlobMissing, errors.StorageUnavailable),
}


@router.post(
    "",
    openapi_extra=takes(request_schema())
    | shows("BatchObject", errors=(errors.NotFound, errors.TooManyBatches, *LIMIT_ERRORS)),
)
async def create(request: Request, gateway: GatewayDep, tenant: TenantDep) -> BatchObject:
    """Run each line of a file as a request. The batch is checked first: its `status` tells."""
    sent = await read_object(gateway.settings, request.scope, request.receive, BatchRequest.of)
    window_s = sent.window_s
    file = await gateway.of(Files).of(tenant, sent.input_file_id)
    if file.purpose is not Purpose.BATCH:
        raise errors.BadRequest(
            f"The purpose of this file is `{file.purpose}`; a batch needs `batch`.",
            "input_file_id",
        )
    await WebhookRecords(gateway.queue).check_ids(tenant, sent.webhooks, "webhooks")
    await take_request(gateway, request.state.key)
    expiry = sent.output_expires_after
    batch = Batch(
        id=new_batch_id(),
        tenant=tenant,
        endpoint=sent.endpoint,
        input_file_id=sent.input_file_id,
        window_s=window_s,
        completion_window=sent.completion_window,
        metadata=sent.metadata,
        output_ttl_s=None if expiry is None else float(expiry.seconds),
        created_at=gateway.fleet.now_s(),
        webhooks=tuple(sent.webhooks),
        key=Incoming.of(request).key.id,
    )
    await gateway.of(BatchRecords).create(batch, MAX_OPEN)
    return BatchObject.of(batch)


@router.get("")
async def list_batches(
    gateway: GatewayDep,
    tenant: TenantDep,
    after: Annotated[str, Query(max_length=100)] = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> BatchList:
    """The tenant's batches, newest first; `after` is the last id of the page before."""
    found, has_more = await gateway.of(BatchRecords).list(tenant, limit, after)
    return BatchList(
        data=[BatchObject.of(batch) for batch in found],
        first_id=found[0].id if found else None,
        last_id=found[-1].id if found else None,
        has_more=has_more,
    )


@router.get("/{batch_id}")
async def retrieve(batch_id: str, gateway: GatewayDep, tenant: TenantDep) -> BatchObject:
    """A batch now. It is kept for 30 days after its end, the oldest of 10,000 for a day."""
    return BatchObject.of(await _batch(gateway, tenant, batch_id))


@router.post(
    "/{batch_id}/cancel",
    openapi_extra=shows("BatchObject", errors=(errors.BatchEnded,)),
)
async def cancel(batch_id: str, gateway: GatewayDep, tenant: TenantDep) -> BatchObject:
    """Ask for the end of a batch. What its lines have answered by then is in its files."""
    await _batch(gateway, tenant, batch_id)
    batch = await gateway.of(BatchRecords).cancel(tenant, batch_id)
    if batch is None:
        raise _no_such_batch(batch_id)
    if batch.status.ended and batch.status is not BatchStatus.CANCELLED:  # twice is no error
        raise errors.BatchEnded(f"Cannot cancel a batch with status '{batch.status}'.")
    return BatchObject.of(batch)


@router.get("/{batch_id}/output", response_class=Response, responses=_CONTENT)
async def get_output(
    batch_id: str, request: Request, gateway: GatewayDep, tenant: TenantDep
) -> Response:
    """The answers so far, a JSON object on each line."""
    return await _content(gateway, request, await _batch(gateway, tenant, batch_id), "output")


@router.get("/{batch_id}/errors", response_class=Response, responses=_CONTENT)
async def get_errors(
    batch_id: str, request: Request, gateway: GatewayDep, tenant: TenantDep
) -> Response:
    """The lines without an answer so far, as `/output`."""
    return await _content(gateway, request, await _batch(gateway, tenant, batch_id), "errors")


async def _content(gateway: Gateway, request: Request, batch: Batch, which: Which) -> Response:
    if file_id := batch.output_file_id if which == "output" else batch.error_file_id:
        await gateway.of(Files).of(batch.tenant, file_id)  # 404 if it is deleted, or has expired
    segments = await gateway.of(BatchRecords).segments(batch.id, which)
    chunks = gateway.of(Files).storage.read(segments)
    name = f"{batch.id}.{which}.jsonl"
    answer = await content_response(request, chunks, total_bytes(segments), name)
    answer.headers["content-type"] = "application/x-ndjson"
    return answer


async def _batch(gateway: Gateway, tenant: str, batch_id: str) -> Batch:
    """The tenant's batch with this id. Raises NotFound, and StoreError."""
    batch = await gateway.of(BatchRecords).get(tenant, batch_id) if is_batch_id(batch_id) else None
    if batch is None:
        raise _no_such_batch(batch_id)
    return batch


def _no_such_batch(batch_id: str) -> errors.NotFound:
    return errors.NotFound(f"There is no batch {batch_id[:64]!r}: the id is wrong, or it is gone.")


def _start(gateway: Gateway) -> None:
    gateway.add(BatchRecords(gateway.queue))


API = Api(
    routers=(router,), schemas={"OutputExpiry": OutputExpiry.model_json_schema()}, start=_start
)
