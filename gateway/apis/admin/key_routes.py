"""Routes for operators: API keys of tenants, which are kept in Redis without their secrets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
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
from gateway.core.audit_trail import AuditTrail
from gateway.core.call import read_object
from gateway.core.context import Gateway, GatewayDep, KeyDep
from gateway.core.key_refresh import KeyRefresh
from gateway.core.limits_object import used_objects
from gateway.core.operator_body import optional_body, taken_reason
from gateway.description.schema import errors_in, shows, takes
from gateway.http.query import known_only
from shared.job import errors
from shared.store.interface import StoreError
from shared.store.redis.key_records import KeyRecords
from shared.tenants.api_key import (
    ApiKey,
    digest_of,
    hint_of,
    is_key_id,
    new_key_id,
    new_secret,
)
from shared.tenants.rate_limits import key_name

router = APIRouter(
    prefix="/admin/keys",
    tags=["operators"],
    dependencies=[known_only],
)

_ONLY_REASON = takes(
    {"type": "object", "properties": {"reason": {"type": "string"}}}, required=False
)
_TRIES = 5
"""Another operator may rotate the key between reading and writing it."""


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
    )
    await _records(gateway).create(digest_of(secret.encode()), key)
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
    records = _records(gateway)
    stored = await records.read()
    keys = sorted(stored.keys().values(), key=lambda key: (-key.created_at, key.id))
    found = [key for key in keys if tenant in ("", key.tenant)]
    if after:
        ids = [key.id for key in found]
        if after in ids:
            found = found[ids.index(after) + 1 :]
        elif (made_at := await records.place_of(after)) is not None:
            found = [key for key in found if (-key.created_at, key.id) > (-made_at, after)]
        else:
            raise _no_such_key(after)
    page = found[:limit]
    used = await used_objects(gateway, [key_name(key.id) for key in page])
    shown = [ListedKey.with_use(key, each) for key, each in zip(page, used, strict=True)]
    return KeyObjectList(data=shown, has_more=len(found) > limit)


@router.put(
    "/{key_id}/limits", responses=errors_in(errors.KeysNotConfigured), openapi_extra=NEW_LIMITS
)
async def limit(key_id: str, request: Request, gateway: GatewayDep, operator: KeyDep) -> KeyObject:
    """Set the limits of a key, in place of those that it has; its secret stays as it is."""
    check_configured(gateway)
    sent = await read_object(gateway.settings, request.scope, request.receive, NewLimits.of)
    limits = sent.limits
    changed = await _change(gateway, key_id, lambda key: key._replace(limits=limits))
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
    hint, digest = hint_of(secret), digest_of(secret.encode())
    changed = await _change(gateway, key_id, lambda key: key._replace(hint=hint), digest)
    await _done(gateway, "rotated", changed, operator, reason)
    return KeyWithSecret.made(changed, secret)


@router.delete("/{key_id}", openapi_extra=_ONLY_REASON)
async def revoke(
    key_id: str, request: Request, gateway: GatewayDep, operator: KeyDep
) -> KeyRevoked:
    """Refuse a key from now on, at every gateway within a second. Its jobs go on."""
    records = _records(gateway)
    reason, _ = taken_reason(await optional_body(request, gateway))
    for _ in range(_TRIES):
        digest, key = await _stored(records, key_id)
        if await records.revoke(digest, key):
            await _done(gateway, "revoked", key, operator, reason)
            return KeyRevoked(id=key.id)
    raise errors.RedisUnavailable("The key was changed meanwhile; try again.")


async def _change(
    gateway: Gateway, key_id: str, change: Callable[[ApiKey], ApiKey], digest: bytes = b""
) -> ApiKey:
    """Store what `change` makes of a key; under another digest if that is not empty.

    Raises NotFound, RedisUnavailable, and StoreError.
    """
    records = _records(gateway)
    for _ in range(_TRIES):
        before, key = await _stored(records, key_id)
        changed = change(key)
        if await records.replace(before, digest or before, changed):
            return changed
    raise errors.RedisUnavailable("The key was changed meanwhile; try again.")


def _records(gateway: Gateway) -> KeyRecords:
    return gateway.of(KeyRefresh).records


def check_configured(gateway: Gateway) -> None:
    """Raises KeysNotConfigured."""
    if not gateway.keys.needed:
        raise errors.KeysNotConfigured(
            "This gateway asks no client for a key: set FLOTILLA_ADMIN_KEYS first."
        )


async def _stored(records: KeyRecords, key_id: str) -> tuple[bytes, ApiKey]:
    """The key with this id and its digest. Raises NotFound, and StoreError."""
    stored = await records.read() if is_key_id(key_id) else None
    for digest, key in (stored.keys() if stored else {}).items():
        if key.id == key_id:
            return digest, key
    raise _no_such_key(key_id)


def _no_such_key(key_id: str) -> errors.NotFound:
    return errors.NotFound(f"There is no API key {key_id[:64]!r}.")


async def _done(gateway: Gateway, what: str, key: ApiKey, operator: ApiKey, reason: str) -> None:
    with contextlib.suppress(StoreError):
        await gateway.of(KeyRefresh).refresh()  # this gateway knows it when it answers
    limits = {name: most for name, most in key.limits._asdict().items() if most}
    details = {"of_tenant": key.tenant, "scopes": sorted(key.scopes), "limits": limits}
    await gateway.of(AuditTrail).write(f"key.{what}", key.id, operator, reason, **details)
