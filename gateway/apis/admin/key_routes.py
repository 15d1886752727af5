"""Routes for operators: API keys of tenants, which are kept in Redis without their secrets."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from gateway.apis.admin.key_object import (
    KeyCreate,
    KeyObject,
    KeyObjectList,
    KeyRevoked,
    KeyWithSecret,
    ListedKey,
    NewLimits,
)
from gateway.core.call import read_object
from gateway.core.context import Gateway, GatewayDep, KeyDep
from gateway.core.key_refresh import KeyRefresh
from gateway.core.limits_object import used_objects
from gateway.core.operator_body import optional_body, taken_reason
from gateway.description.schema import errors_in, shows, takes
from gateway.http.query import known_only
from shared.job import errors
from shared.store.errors import StoreError
from shared.store.operators import AuditTrail
from shared.tenants.api_key import ApiKey, digest_of, hint_of, new_key_id, new_secret
from shared.tenants.rate_limits import key_name

router = APIRouter(
    prefix="/admin/keys",
    tags=["operators"],
    dependencies=[known_only],
)

_ONLY_REASON = takes(
    {"type": "object", "properties": {"reason": {"type": "string"}}}, required=False
)


def _body(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a body; those that it names are among the answers'."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return schema


NEW_LIMITS = takes(_body(NewLimits))


@router.post(
    "",
    openapi_extra=takes(_body(KeyCreate))
    | shows("KeyWithSecret", errors=(errors.KeysNotConfigured, errors.QuotaExceeded)),
)
async def create(request: Request, gateway: GatewayDep, operator: KeyDep) -> KeyWithSecret:
    """Make a key for a tenant. Its secret is shown now, and not again."""
    check_configured(gateway)
    sent = await read_object(gateway.settings, request.scope, request.receive, KeyCreate.of)
    now_s = gateway.fleet.now_s()
    if sent.expires_at is not None and sent.expires_at <= now_s:
        raise errors.BadRequest("`expires_at` is a time that has passed.", "expires_at")
    secret = new_secret()
    key = ApiKey(
        id=new_key_id(),
        tenant=sent.tenant,
        scopes=frozenset(sent.scopes),
        name=sent.name,
        models=tuple(dict.fromkeys(sent.models)),
        expires_at=sent.expires_at,
        hint=hint_of(secret),
        created_at=now_s,
        created_by=operator.tenant,
        limits=sent.limits.limits,
        digest=digest_of(secret.encode()).hex(),
    )
    await gateway.of(KeyRefresh).records.create(key)
    await _done(gateway, "created", key, operator, sent.reason)
    return KeyWithSecret.made(key, secret)


@router.get("")
async def list_keys(
    gateway: GatewayDep,
    tenant: Annotated[str, Query(max_length=64)] = "",
    after: Annotated[str, Query(max_length=100)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> KeyObjectList:
    """The keys in Redis, newest first, without their secrets; not those in the settings.

    `after` is the last id of the page before.
    """
    page, has_more = await gateway.of(KeyRefresh).records.list(tenant, after, limit)
    used = await used_objects(gateway, [key_name(key.id) for key in page])
    shown = [ListedKey.with_use(key, each) for key, each in zip(page, used, strict=True)]
    return KeyObjectList(data=shown, has_more=has_more)


@router.put(
    "/{key_id}/limits", responses=errors_in(errors.KeysNotConfigured), openapi_extra=NEW_LIMITS
)
async def limit(key_id: str, request: Request, gateway: GatewayDep, operator: KeyDep) -> KeyObject:
    """Set the limits of a key, in place of those that it has; its secret stays as it is."""
    check_configured(gateway)
    sent = await read_object(gateway.settings, request.scope, request.receive, NewLimits.of)
    limits = sent.limits
    records = gateway.of(KeyRefresh).records
    changed = await records.change(key_id, lambda key: key._replace(limits=limits))
    await _done(gateway, "limited", changed, operator, sent.reason)
    return KeyObject.of(changed)


@router.post(
    "/{key_id}/rotate", responses=errors_in(errors.KeysNotConfigured), openapi_extra=_ONLY_REASON
)
async def rotate(
    key_id: str, request: Request, gateway: GatewayDep, operator: KeyDep
) -> KeyWithSecret:
    """Replace the secret of a key, which is refused from now on; the new one is shown now only."""
    check_configured(gateway)
    reason, _ = taken_reason(await optional_body(request, gateway))
    secret = new_secret()
    hint, digest = hint_of(secret), digest_of(secret.encode()).hex()
    records = gateway.of(KeyRefresh).records
    changed = await records.change(key_id, lambda key: key._replace(hint=hint, digest=digest))
    await _done(gateway, "rotated", changed, operator, reason)
    return KeyWithSecret.made(changed, secret)


@router.delete("/{key_id}", openapi_extra=_ONLY_REASON)
async def revoke(
    key_id: str, request: Request, gateway: GatewayDep, operator: KeyDep
) -> KeyRevoked:
    """Refuse a key from now on, at every gateway within a second. Its jobs go on."""
    reason, _ = taken_reason(await optional_body(request, gateway))
    key = await gateway.of(KeyRefresh).records.revoke(key_id)
    await _done(gateway, "revoked", key, operator, reason)
    return KeyRevoked(id=key.id)


def check_configured(gateway: Gateway) -> None:
    """Raises KeysNotConfigured."""
    if not gateway.keys.needed:
        raise errors.KeysNotConfigured(
            "This gateway asks no client for a key: set FLOTILLA_ADMIN_KEYS first."
        )


async def _done(gateway: Gateway, what: str, key: ApiKey, operator: ApiKey, reason: str) -> None:
    with contextlib.suppress(StoreError):
        await gateway.of(KeyRefresh).refresh()  # this gateway knows it when it answers
    limits = {name: most for name, most in key.limits._asdict().items() if most}
    details = {"of_tenant": key.tenant, "scopes": sorted(key.scopes), "limits": limits}
    await gateway.of(AuditTrail).write(f"key.{what}", key.id, operator, reason, **details)
