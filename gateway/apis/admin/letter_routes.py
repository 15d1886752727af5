"""Routes for operators: jobs that are out of attempts.

They show those of all tenants, so only an operator's key may use them
(gateway/http/middleware.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse, Response

from gateway.apis.admin.letter_object import letter_object
from gateway.core.audit_trail import AuditTrail
from gateway.core.call import repeat
from gateway.core.context import Gateway, GatewayDep, KeyDep
from gateway.description.schema import shows
from gateway.http.query import known_only
from shared.job.errors import BadRequest, NotFound, NotRepeatable
from shared.store.redis import dead_letters
from shared.store.redis.dead_letters import Letter, LetterId

router = APIRouter(prefix="/admin/dead", tags=["operators"], dependencies=[known_only])

Kind = Literal["attempts", "entry", "field", "job", "key", "log", "member", "steps"]


@router.get("", openapi_extra=shows("DeadLetterList"))
async def list_letters(
    gateway: GatewayDep,
    what: Kind | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    cursor: Annotated[str | None, Query(max_length=40)] = None,
) -> dict[str, Any]:
    """Dead letters, newest first. `cursor=next_cursor` continues while `has_more` is true.

    `what=attempts`: only jobs that are out of attempts.
    """
    before = LetterId.parse(cursor) if cursor is not None else None
    if cursor is not None and before is None:
        raise BadRequest("`cursor` must be the `next_cursor` of a page.", "cursor")
    letters = await dead_letters.page(gateway.queue, what, before, limit + 1)
    shown, more = letters[:limit], len(letters) > limit
    return {
        "object": "list",
        "data": await _objects(gateway, shown),
        "has_more": more,
        "next_cursor": str(shown[-1].id) if more else None,
    }


@router.get("/{letter_id}", openapi_extra=shows("DeadLetter"))
async def get_letter(letter_id: str, gateway: GatewayDep) -> dict[str, Any]:
    """One dead letter."""
    (shown,) = await _objects(gateway, [await _letter(gateway, letter_id)])
    return shown


@router.post(
    "/{letter_id}/replay",
    status_code=202,
    openapi_extra=shows("Replay", 202, errors=(NotRepeatable,)),
)
async def replay(letter_id: str, gateway: GatewayDep, operator: KeyDep) -> Response:
    """Submit the request of the letter's job again, for its tenant, and delete the letter.

    The new job may use all attempts again. A call that is repeated before the letter was deleted
    makes no second job; afterwards it is 404.
    """
    letter = await _letter(gateway, letter_id)
    job = await gateway.queue.get(letter.subject)
    if job is None:
        raise NotRepeatable("The job of this dead letter is not kept any more, or it has none.")
    new = await repeat(gateway, job, _job_id_for(letter.id))
    await gateway.submitter.submit(new)
    await dead_letters.drop(gateway.queue, letter.id)
    gateway.metrics.dead_letters_handled.labels("replayed").inc()
    trail = gateway.of(AuditTrail)
    await trail.write("dead_letter.replayed", letter_id, operator, "", job=job.id, new_job=new.id)
    shown = {
        "id": str(letter.id),
        "object": "dead_letter.replay",
        "job_id": new.id,
        "retried_from": job.id,
        "tenant": job.tenant,
    }
    return JSONResponse(shown, 202, {"x-flotilla-job-id": new.id})


@router.delete("/{letter_id}")
async def drop(letter_id: str, gateway: GatewayDep, operator: KeyDep) -> dict[str, Any]:
    """Delete a dead letter. Its job is kept no longer than others that have ended."""
    letter = await _letter(gateway, letter_id)
    if await dead_letters.drop(gateway.queue, letter.id):
        gateway.metrics.dead_letters_handled.labels("dropped").inc()
        await gateway.of(AuditTrail).write("dead_letter.dropped", letter_id, operator, "")
    return {"id": str(letter.id), "object": "dead_letter", "deleted": True}


async def _letter(gateway: Gateway, letter_id: str) -> Letter:
    parsed = LetterId.parse(letter_id)
    letter = await dead_letters.get(gateway.queue, parsed) if parsed else None
    if letter is None:
        raise NotFound(
            f"There is no dead letter {letter_id[:64]!r}: it was replayed or dropped, or is too old"
            " (about 1,000 of each shard are kept)."
        )
    return letter


async def _objects(gateway: Gateway, letters: Sequence[Letter]) -> list[dict[str, Any]]:
    """The object of each letter; a job whose request is there can be replayed."""
    kept = await dead_letters.replayable(gateway.queue, letters)
    return [letter_object(letter, replayable=letter.subject in kept) for letter in letters]


def _job_id_for(letter_id: LetterId) -> str:
    """The new job's id, the same for each call: a repeated one makes no second job."""
    random = hashlib.sha256(str(letter_id).encode()).hexdigest()[:24]
    return f"job_{letter_id.shard:03x}{random}"
