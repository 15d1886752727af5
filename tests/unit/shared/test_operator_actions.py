"""The table of the operators' actions: options are checked before a worker gets them."""

from __future__ import annotations

from typing import Any

import pytest

from shared.api.operator_actions import ACTIONS, PATHS, check_options, read_words
from shared.job.errors import BadRequest

LOAD = {"lora_name": "sql", "lora_path": "/adapters/sql"}


def test_every_action_has_a_path_of_its_own() -> None:
    assert len(PATHS) == len(ACTIONS)
    assert all(path.startswith("/") for path in PATHS)


@pytest.mark.parametrize(
    ("action", "given", "expected"),
    [
        ("load_lora_adapter", LOAD, LOAD),
        ("load_lora_adapter", LOAD | {"load_inplace": None}, LOAD),
        ("load_lora_adapter", LOAD | {"load_inplace": True}, LOAD | {"load_inplace": True}),
        ("sleep", {"level": 2, "mode": "wait"}, {"level": 2, "mode": "wait"}),
        ("wake_up", {"tags": ["weights"]}, {"tags": ["weights"]}),
        ("pause", {}, {}),
    ],
)
def test_right_options(action: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert check_options(ACTIONS[action], given) == expected


@pytest.mark.parametrize(
    ("action", "given", "param"),
    [
        ("load_lora_adapter", {"lora_name": "sql"}, "lora_path"),
        ("load_lora_adapter", LOAD | {"lora_name": ""}, "lora_name"),
        ("load_lora_adapter", LOAD | {"lora_name": "a\nb"}, "lora_name"),
        ("load_lora_adapter", LOAD | {"lora_path": "x" * 2000}, "lora_path"),
        ("load_lora_adapter", LOAD | {"lora_path": 7}, "lora_path"),
        ("load_lora_adapter", LOAD | {"load_inplace": "yes"}, "load_inplace"),
        ("load_lora_adapter", LOAD | {"more": 1}, "more"),
        ("sleep", {"level": True}, "level"),
        ("sleep", {"level": -1}, "level"),
        ("sleep", {"mode": "keep"}, "mode"),
        ("wake_up", {"tags": "weights"}, "tags"),
        ("pause", {"mode": "abort"}, "mode"),
    ],
)
def test_wrong_options(action: str, given: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_options(ACTIONS[action], given)
    assert caught.value.param == param


def test_options_from_a_query_and_back() -> None:
    reset, wake_up = ACTIONS["reset_prefix_cache"], ACTIONS["wake_up"]
    options = read_words(reset, {"reset_external": ["True"]})
    assert options == {"reset_external": True}
    assert reset.query(options) == b"reset_external=true"
    assert read_words(wake_up, {"tags": ["a", "b"]}) == {"tags": ["a", "b"]}
    assert wake_up.query({"tags": ["a", "b"]}) == b"tags=a&tags=b"
    assert read_words(ACTIONS["sleep"], {"level": ["2"]}) == {"level": 2}
    assert ACTIONS["load_lora_adapter"].query(LOAD) == b""
    for words in ({"level": ["x"]}, {"level": ["-1"]}, {"mode": [""]}, {"pool": ["x"]}):
        with pytest.raises(BadRequest):
            read_words(ACTIONS["sleep"], words)
