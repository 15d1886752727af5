"""The operators' actions in the API's description: their options and answers."""

from __future__ import annotations

from gateway.description.schema import (
    ANYTHING,
    NUMBER,
    TEXT,
    WHOLE,
    YES_NO,
    Schema,
    array,
    obj,
    ref,
    takes,
)
from shared.api.operator_actions import ACTIONS, DRAIN, OperatorAction, OptionKind

_KINDS: dict[OptionKind, Schema] = {
    OptionKind.TEXT: TEXT | {"minLength": 1, "maxLength": 1024},
    OptionKind.WHOLE: WHOLE | {"minimum": 0},
    OptionKind.YES_NO: YES_NO,
    OptionKind.TEXTS: array(TEXT),
    OptionKind.SLEEP_MODE: {"enum": ["abort", "wait"]},
}

OPERATION_SCHEMAS: dict[str, Schema] = {
    "Operation": obj(
        "id object pool action outcome workers",
        id=TEXT,
        object={"const": "operation"},
        pool=TEXT,
        action={"enum": [*ACTIONS, DRAIN.name]},
        outcome={"enum": ["done", "failed", "incomplete"]},
        workers=array(
            obj(
                "id status seconds answer",
                id=TEXT,
                status=WHOLE | {"description": "as of an HTTP response"},
                seconds=NUMBER,
                answer={"description": "the engine's own"},
            )
        ),
    ),
    "Pool": obj(
        "id object paused intake_stopped models adapters workers",
        id=TEXT,
        object={"const": "pool"},
        paused=YES_NO,
        intake_stopped=YES_NO | {"description": "new requests are refused"},
        models=array(TEXT),
        adapters={"type": "object", "additionalProperties": TEXT}
        | {"description": "those that were loaded at run time: name -> path"},
        workers=array(ANYTHING),
    ),
    "PoolList": obj("object data", object={"const": "list"}, data=array(ref("Pool"))),
}
OPTIONS_BODY = takes(ANYTHING | {"description": "the action's options"}, required=False)


def options_of(action: OperatorAction) -> Schema:
    """The options of the route with vLLM's name, for its `openapi_extra`."""
    parameters = [{"name": "pool", "in": "query", "required": False, "schema": TEXT}]
    schemas = {name: _KINDS[kind] for name, kind in action.options.items()}
    if action.in_query:
        parameters += [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in schemas.items()
        ]
        return {"parameters": parameters}
    if not schemas:
        return {"parameters": parameters}
    body = {"type": "object", "required": sorted(action.required), "properties": schemas}
    return {"parameters": parameters} | takes(body, required=bool(action.required))
