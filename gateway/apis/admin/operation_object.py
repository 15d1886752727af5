"""Operator calls as answers: Flotilla's object with each worker's result, or vLLM's own answer."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from gateway.apis.admin.broadcast import Operation
from shared.job.errors import FlotillaError, OperationFailed, OperationIncomplete


def operation_object(operation: Operation) -> dict[str, Any]:
    """The call and what each worker answered."""
    return {
        "id": operation.id,
        "object": "operation",
        "pool": operation.pool,
        "action": operation.action,
        "outcome": operation.outcome,
        "workers": [
            {
                "id": worker,
                "status": answer.status,
                "seconds": answer.seconds,
                "answer": answer.body,
            }
            for worker, answer in operation.workers.items()
        ],
    }


def failure(operation: Operation) -> FlotillaError | None:
    """The error of a call that not all workers have carried out; None if all have.

    If all refuse it with the same status, such as 404 for a path without an adapter, the error has
    that status.
    """
    failed = operation.failed
    if not failed:
        return None
    first = next(iter(failed.values()))
    reasons = {answer.message for answer in failed.values()}
    message = "; ".join(sorted(reasons)[:3])
    if operation.without_effect and {answer.status for answer in failed.values()} <= {first.status}:
        error = OperationFailed(message)
        error.status = first.status if first.status in _PASSED_ON else error.status
        error.type = "invalid_request_error" if error.status < 500 else error.type
        return error
    kind = OperationIncomplete if operation.outcome == "incomplete" else OperationFailed
    workers = ", ".join(failed)
    return kind(
        f"{len(failed)} of {len(operation.workers)} workers have not done it ({workers}): {message}"
    )


_PASSED_ON = frozenset({400, 404, 501})


def own_answer(operation: Operation, error: FlotillaError | None) -> Response:
    """The answer of `/admin/pools/...`: the object, and beside it the error if there is one."""
    shown = operation_object(operation)
    if error is None:
        return JSONResponse(shown)
    body = json.loads(error.to_openai()) | {"operation": shown}
    return JSONResponse(body, error.status, dict(_decoded(error)))


def engine_answer(operation: Operation) -> Response:
    """The answer of a route with vLLM's name, if all workers have done it: the first one's.

    If the engines report different states, as in `is_sleeping`, it is that of one that reports
    `false`: a pool sleeps when all of its engines do.
    """
    bodies = [answer.body for answer in operation.workers.values() if answer.ok]
    if not bodies:
        return Response(status_code=200)
    body = next((each for each in bodies if each != bodies[0] and _says_no(each)), bodies[0])
    if body is None:
        return Response(status_code=200)
    return PlainTextResponse(body) if isinstance(body, str) else JSONResponse(body)


def _says_no(body: Any) -> bool:
    return isinstance(body, dict) and False in body.values()


def _decoded(error: FlotillaError) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in error.headers()]
