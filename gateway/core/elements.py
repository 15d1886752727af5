"""Kinds of values, and checks of the elements of a list, which stop at the first wrong one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.http.wrong_fields import sent
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


_words: dict[Kind, str] = {}
"""What the kinds made below are, for messages; of those above it is in their first line."""


def words_of(kind: Kind) -> str:
    """What a value of this kind is: `a text or null`."""
    words = _words.get(kind) or (kind.__doc__ or "valid").rstrip(".")
    return words[0].lower() + words[1:]


def optional(kind: Kind) -> Kind:
    """It may be missing."""

    def made(value: Any) -> bool:
        return value is ABSENT or kind(value)

    _words[made] = words_of(kind)
    return made


def maybe(kind: Kind) -> Kind:
    """It may be missing or null."""

    def made(value: Any) -> bool:
        return value is ABSENT or value is None or kind(value)

    _words[made] = f"{words_of(kind)} or null"
    return made


def either(one: Kind, other: Kind) -> Kind:
    """Of one of two kinds."""

    def made(value: Any) -> bool:
        return one(value) or other(value)

    _words[made] = f"{words_of(one)} or {words_of(other)}"
    return made


def one_of(*words: str) -> Kind:
    """One of these texts."""

    def made(value: Any) -> bool:
        return type(value) is str and value in words

    _words[made] = "one of " + ", ".join(words)
    return made


def with_fields(fields: Fields) -> Kind:
    """An object with these fields, and any others."""

    def made(value: Any) -> bool:
        return type(value) is dict and wrong_field(value, fields) is None

    _words[made] = "an object with " + ", ".join(fields)
    return made


def typed(known: Mapping[str, Fields]) -> Kind:
    """An object whose `type` is known, with that type's fields."""

    def kind(value: Any) -> bool:
        if type(value) is not dict or type(value.get("type")) is not str:
            return False
        fields = known.get(value["type"])
        return fields is not None and wrong_field(value, fields) is None

    _words[kind] = "an object whose type is one of " + ", ".join(known)
    return kind


def list_of(kind: Kind) -> Kind:
    """A list whose elements are of this kind."""

    def made(value: Any) -> bool:
        return type(value) is list and all(map(kind, value))

    _words[made] = f"a list, of which each element is {words_of(kind)}"
    return made


def wrong_field(value: Mapping[str, Any], fields: Fields) -> str | None:
    """The name of the first field whose value is of another kind."""
    for name, kind in fields.items():
        if not kind(value.get(name, ABSENT)):
            return name
    return None


def refusal(at: str, what: str, value: Any = ABSENT) -> BadRequest:
    """The error for what is at this place, such as `messages[3].role`."""
    found = "" if value is ABSENT else sent(value)
    if not found:
        what += ", and is missing"
    elif not what.startswith(found):  # else it is a list, but not one of these elements
        what += f", not {found}"
    return BadRequest(f"`{at}` must be {what}.", at)


def objects(name: str, value: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    """The elements of a list of objects, each with its place. Raises BadRequest."""
    if type(value) is not list:
        raise refusal(name, "a list of objects", value)
    for index, each in enumerate(value):
        if type(each) is not dict:
            raise refusal(f"{name}[{index}]", "an object", each)
        yield f"{name}[{index}]", each


def check_fields(at: str, value: Mapping[str, Any], fields: Fields) -> None:
    """Raises BadRequest for the first field whose value is of another kind."""
    name = wrong_field(value, fields)
    if name is not None:
        raise refusal(f"{at}.{name}", words_of(fields[name]), value.get(name, ABSENT))


def check_typed(at: str, value: Mapping[str, Any], known: Mapping[str, Fields]) -> None:
    """Raises BadRequest if an object's `type` is not known, or its fields are not that type's."""
    kind = value.get("type")
    if type(kind) is not str or kind not in known:
        raise refusal(f"{at}.type", "one of " + ", ".join(known), value.get("type", ABSENT))
    check_fields(at, value, known[kind])


def each_is(kind: Kind, what: str) -> Callable[[str, Any], None]:
    """A check that raises BadRequest for the first element of another kind."""

    def check(name: str, value: Any) -> None:
        named = type(value) is dict
        for place, each in value.items() if named else enumerate(value):
            if not kind(each):
                at = f"{name}.{str(place)[:64]}" if named else f"{name}[{place}]"
                raise refusal(at, what, each)

    return check


def all_are(kind: Kind, what: str) -> Callable[[str, Any], None]:
    """A check that raises BadRequest if a value is of another kind."""

    def check(name: str, value: Any) -> None:
        if not kind(value):
            raise refusal(name, what, value)

    return check
