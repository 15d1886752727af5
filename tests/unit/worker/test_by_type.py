"""A union that is tried by `type` accepts what it accepted before, and tries less."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError, model_validator
from pydantic_core import SchemaValidator
from typing_extensions import TypedDict

from worker.engines.vllm.body_models import cheap

tried: list[str] = []


class Counted(BaseModel):
    @model_validator(mode="after")
    def _count(self) -> Any:
        tried.append(type(self).__name__)
        return self


class Text(TypedDict):
    type: Literal["text"]
    text: str


class Message(TypedDict):
    role: str
    type: NotRequired[Literal["message"]]


class Reference(TypedDict):
    id: str
    type: NotRequired[Literal["reference"] | None]


class Call(BaseModel):
    type: Literal["call", "custom_call"]
    name: str


class Output(BaseModel):
    type: Literal["output"] = "output"
    output: str


class Free(BaseModel):
    type: str
    free: int


class Tree(BaseModel):
    type: Literal["tree"]
    items: list[Text | Message | Tree]


Item = Text | Message | Reference | (Call | Output) | Free | Tree | str
VALUES: list[Any] = [
    {"type": "text", "text": "x"},
    {"type": "text", "text": 1},
    {"role": "user"},
    {"role": "user", "type": "message"},
    {"role": "user", "type": "text"},
    {"id": "x", "type": None},
    {"id": "x", "role": "user"},
    {"type": "custom_call", "name": "f"},
    {"output": "x"},
    {"type": "text", "free": 1},
    {"type": "unknown", "free": 1},
    {"type": "unknown"},
    {"type": ["text"], "text": "x"},
    {"type": "", "free": 1},
    {"type": "\0", "role": "user"},
    {"type": "tree", "items": [{"type": "tree", "items": [{"role": "x"}]}]},
    {"type": "tree", "items": [{"type": "tree", "items": [{}]}]},
    Call(type="call", name="f"),
    "x",
    1,
    None,
    {},
    [],
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_it_accepts_the_same(value: Any) -> None:
    plain = TypeAdapter(list[Item])
    ours = SchemaValidator(cheap(plain.core_schema), _use_prebuilt=False)
    assert _result(ours, value) == _result(plain.validator, value)


def _result(validator: Any, value: Any) -> Any:
    try:
        return validator.validate_python([value])
    except ValidationError:
        return "wrong"


def test_only_what_fits_is_tried() -> None:
    class A(Counted):
        type: Literal["a"]

    class B(Counted):
        type: Literal["b"]

    class C(Counted):
        type: Literal["c"]

    ours = SchemaValidator(cheap(TypeAdapter(list[A | B | C]).core_schema), _use_prebuilt=False)
    with pytest.raises(ValidationError) as wrong:
        ours.validate_python([{"type": "b"}, {"type": "d"}])
    assert tried == ["B"]
    assert wrong.value.error_count() == 1
