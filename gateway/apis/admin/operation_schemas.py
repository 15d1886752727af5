"""The operators' actions in the API's description: their options and answers."""

from __future__ import annotations

from gateway.core.schema import ANYTHING, NUMBER, TEXT, WHOLE, YES_NO, Schema, array, obj, ref
from shared.api.operator_actions import ACTIONS, DRAIN, PATHS, OperatorAction, OptionKind

_JSON = "application/json"
_ACTION_PATH = "/admin/pools/{pool}/{action}"
_KINDS: dict[OptionKind, Schema] = {
    OptionKind.TEXT: TEXT | {"minLength": 1, "maxLength": 1024},
    OptionKind.WHOLE: WHOLE | {"minimum": 0},
    OptionKind.YES_NO: YES_NO,
    OptionKind.TEXTS: array(TEXT),
    OptionKind.SLEEP_MODE: {"enum": ["abort", "wait"]},
}

SCHEMAS: dict[str, Schema] = {
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
RESPONSES: dict[tuple[str, str], dict[str, str]] = {
    ("get", "/admin/pools"): {"200": "PoolList"},
    ("get", "/admin/pools/{pool}"): {"200": "Pool"},
    ("post", _ACTION_PATH): {"200": "Operation"},
}


def add_options(operation: Schema, path: str) -> None:
    """Describe the options of an operator's route; nothing for another route."""
    if path == _ACTION_PATH:
        content = {_JSON: {"schema": ANYTHING | {"description": "the action's options"}}}
        operation["requestBody"] = {"required": False, "content": content}
        for parameter in operation["parameters"]:
            if parameter["name"] == "action":
                parameter["schema"] = {"enum": list(ACTIONS)}
    if path in PATHS:
        _add_options_of(operation, PATHS[path])


def _add_options_of(operation: Schema, action: OperatorAction) -> None:
    parameters = operation.setdefault("parameters", [])
    parameters.append({"name": "pool", "in": "query", "required": False, "schema": TEXT})
    schemas = {name: _KINDS[kind] for name, kind in action.options.items()}
    if action.in_query:
        parameters += [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in schemas.items()
        ]
    elif schemas:
        body = {"type": "object", "required": sorted(action.required), "properties": schemas}
        operation["requestBody"] = {
            "required": bool(action.required),
            "content": {_JSON: {"schema": body}},
        }
