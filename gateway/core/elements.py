"""Kinds of values, and checks of the elements of a list, which stop at the first wrong one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shared.job.errors import BadRequest

ABSENT = object()
"""Stands for the value of a field that is not there."""
Kind = Callable[[Any], bool]
"""Whether a value is of this kind."""
Fields = Mapping[str, Kind]
_TOKEN_LIMIT = 1 << 63


def text(value: Any) -> bool:
    """A text."""
    return type(value) is str


def listed(value: Any) -> bool:
    """A list of anything."""
    return type(value) is list


def flag(value: Any) -> bool:
    """True or false."""
    return type(value) is bool


def number(value: Any) -> bool:
    """An integer or a fraction."""
    return type(value) is int or type(value) is float


def integer(value: Any) -> bool:
    """An integer; `true` is none."""
    return type(value) is int


def integers(value: Any) -> bool:
    """A list of integers."""
    return type(value) is list and set(map(type, value)) <= {int}


def texts(value: Any) -> bool:
    """A list of texts."""
    return type(value) is list and set(map(type, value)) <= {str}


def mapped(value: Any) -> bool:
    """An object of anything."""
    return type(value) is dict


def text_values(value: Any) -> bool:
    """An object of texts."""
    return type(value) is dict and set(map(type, value.values())) <= {str}


def token_ids(value: Any) -> bool:
    """A list of token ids."""
    return integers(value) and (not value or (min(value) >= 0 and max(value) < _TOKEN_LIMIT))


def optional(kind: Kind) -> Kind:
    """It may be missing."""
    return lambda value: value is ABSENT or kind(value)


def maybe(kind: Kind) -> Kind:
    """It may be missing or null."""
    return lambda value: value is ABSENT or value is None or kind(value)


def either(one: Kind, other: Kind) -> Kind:
    """Of one of two kinds."""
    return lambda value: one(value) or other(value)


def one_of(*words: str) -> Kind:
    """One of these texts."""
    return lambda value: type(value) is str and value in words


def with_fields(fields: Fields) -> Kind:
    """An object with these fields, and any others."""
    return lambda value: type(value) is dict and wrong_field(value, fields) is None


def typed(known: Mapping[str, Fields]) -> Kind:
    """An object whose `type` is known, with that type's fields."""

    def kind(value: Any) -> bool:
        if type(value) is not dict or type(value.get("type")) is not str:
            return False
        fields = known.get(value["type"])
        return fields is not None and wrong_field(value, fields) is None

    return kind


def list_of(kind: Kind) -> Kind:
    """A list whose elements are of this kind."""
    return lambda value: type(value) is list and all(map(kind, value))


def wrong_field(value: Mapping[str, Any], fields: Fields) -> str | None:
    """The name of the first field whose value is of another kind."""
    for name, kind in fields.items():
        if not kind(value.get(name, ABSENT)):
            return name
    return None


def refusal(at: str, what: str) -> BadRequest:
    """The error for what is at this place, such as `messages[3].role`."""
    return BadRequest(f"`{at}` must be {what}.", at)


def objects(name: str, value: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    """The elements of a list of objects, each with its place. Raises BadRequest."""
    if type(value) is not list:
        raise refusal(name, "a list of objects")
    for index, each in enumerate(value):
        if type(each) is not dict:
            raise refusal(f"{name}[{index}]", "an object")
        yield f"{name}[{index}]", each


def check_fields(at: str, value: Mapping[str, Any], fields: Fields) -> None:
    """Raises BadRequest for the first field whose value is of another kind."""
    name = wrong_field(value, fields)
    if name is not None:
        what = "given" if name not in value else "of another kind: its value is not valid"
        raise refusal(f"{at}.{name}", what)


def check_typed(at: str, value: Mapping[str, Any], known: Mapping[str, Fields]) -> None:
    """Raises BadRequest if an object's `type` is not known, or its fields are not that type's."""
    kind = value.get("type")
    if type(kind) is not str or kind not in known:
        raise refusal(f"{at}.type", "one of " + ", ".join(known))
    check_fields(at, value, known[kind])


def each_is(kind: Kind, what: str) -> Callable[[str, Any], None]:
    """A check that raises BadRequest for the first element of another kind."""

    def check(name: str, value: Any) -> None:
        named = type(value) is dict
        for place, each in value.items() if named else enumerate(value):
            if not kind(each):
                raise refusal(f"{name}.{str(place)[:64]}" if named else f"{name}[{place}]", what)

    return check


def all_are(kind: Kind, what: str) -> Callable[[str, Any], None]:
    """A check that raises BadRequest if a value is of another kind."""

    def check(name: str, value: Any) -> None:
        if not kind(value):
            raise refusal(name, what)

    return check
