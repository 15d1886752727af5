"""Which pool a client's name for a model leads to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from shared.fleet.model_names import ModelNames, declared_models, merged
from shared.fleet.pools import load_pools
from shared.fleet.registry import ModelInfo
from tests.harness.settings import Settings


def model(name: str, pool: str = "p", *, parent: str = "", **fields: Any) -> ModelInfo:
    card = {"id": name} | ({"parent": parent} if parent else {})
    return ModelInfo(name, pool, card, **fields)


def version(of: str, number: str, weight: int, **fields: Any) -> ModelInfo:
    return model(
        f"{of}:{number}",
        f"{of}-{number}",
        served_name=of,
        version=number,
        weight=weight,
        **fields,
    )


def names(*models: ModelInfo, **arguments: Any) -> ModelNames:
    return ModelNames({each.name: each for each in models}, **arguments)


CANARY = (version("chat", "1", 90), version("chat", "2", 10), model("embed", "e"))


def pool_of(found: ModelInfo | None) -> str:
    return found.pool if found else ""


def test_a_plain_name_leads_to_its_pool() -> None:
    found = names(model("a"), model("b:7", "q"))
    assert pool_of(found.resolve("a")) == "p"
    assert pool_of(found.resolve("b:7")) == "q", "a name may contain a colon"
    assert found.resolve("b") is None
    assert found.resolve("a", "1") is None


def test_a_request_that_names_no_version_gets_one_by_weight() -> None:
    found = names(*CANARY)
    drawn = Counter(pool_of(found.resolve("chat", share=n / 1000)) for n in range(1000))
    assert drawn == {"chat-1": 900, "chat-2": 100}
    assert pool_of(found.resolve("embed", share=0.99)) == "e"


@pytest.mark.parametrize("share", [0.0, 0.95])
def test_a_version_is_named_in_the_name_or_beside_it(share: float) -> None:
    found = names(*CANARY)
    assert pool_of(found.resolve("chat:2", share=share)) == "chat-2"
    assert pool_of(found.resolve("chat", "2", share)) == "chat-2"
    assert pool_of(found.resolve("chat:2", "2", share)) == "chat-2"
    assert found.resolve("chat:2", "1", share) is None
    assert found.resolve("chat", "3", share) is None
    assert found.resolve("chat:3", share=share) is None


def test_without_any_weight_the_first_version_serves() -> None:
    found = names(version("m", "1", 0), version("m", "2", 0))
    assert pool_of(found.resolve("m", share=0.9)) == "m-1"


def test_an_adapter_of_several_versions_has_one_name() -> None:
    found = names(
        version("sql", "1", 90, parent="chat"), version("sql", "2", 10, parent="chat"), *CANARY
    )
    assert pool_of(found.resolve("sql", share=0.95)) == "sql-2"
    assert pool_of(found.resolve("sql", "1")) == "sql-1"
    assert found.resolve("sql:1") is None, "vLLM knows an adapter by its own name only"


def test_the_list_has_every_name() -> None:
    listed = names(*CANARY).listed
    assert list(listed) == ["chat", "chat:1", "chat:2", "embed"]
    assert (listed["chat"].pool, listed["chat"].card["id"]) == ("chat-1", "chat")
    assert [each.version for each in names(*CANARY).versions("chat")] == ["1", "2"]
    assert names(*CANARY).versions("embed") == []


@pytest.mark.parametrize(
    ("models", "default", "pool"),
    [
        ((model("a"),), "", "p"),
        ((model("a"), model("b")), "", "p"),  # two names of one model
        ((model("a"), model("b", "q")), "", ""),
        ((model("a"), model("b", "q")), "b", "q"),
        ((model("a"), model("x", "p+x", parent="a")), "", "p"),
        (CANARY, "", ""),
        (CANARY, "chat", "chat-1"),
        (CANARY, "nowhere", ""),
        (CANARY[:2], "", "chat-1"),
        ((), "", ""),
    ],
)
def test_a_request_without_a_model_gets_the_default(
    models: tuple[ModelInfo, ...], default: str, pool: str
) -> None:
    assert pool_of(names(*models, default_model=default).resolve("")) == pool


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("qwen-3-8b", ["Qwen3-8B"]),
        ("LLAMA", ["meta-llama/Llama-3.1-8B-Instruct"]),
        ("Llama-3.1-8B", ["meta-llama/Llama-3.1-8B-Instruct"]),
        ("zzz", ["Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct"]),
        ("", ["Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct"]),
    ],
)
def test_the_nearest_names_are_those_that_were_meant(name: str, near: list[str]) -> None:
    found = names(model("Qwen3-8B"), model("meta-llama/Llama-3.1-8B-Instruct", "q"))
    assert found.nearest(name) == near


# --- with flotilla.yaml ---


def declared() -> dict[str, ModelInfo]:
    pools = {
        "chat-1": {"served_names": ["chat", "c"], "version": 1, "weight": 90},
        "chat-2": {"served_names": ["chat", "c"], "version": 2, "weight": 10},
        "embed": {"model": "org/embed"},
    }
    return declared_models(load_pools(Settings(pools=pools)))  # type: ignore[arg-type]


def test_the_models_of_the_file_are_known_without_workers() -> None:
    found = ModelNames(declared())
    assert sorted(found.listed) == ["c", "c:1", "c:2", "chat", "chat:1", "chat:2", "org/embed"]
    assert pool_of(found.resolve("c", share=0.95)) == "chat-2"
    assert declared_models(load_pools(Settings(model="m"))) == {}


def test_the_file_counts_where_the_registry_says_something_else() -> None:
    known = {
        each.name: each
        for each in (
            model("chat", "old"),  # served before the file had versions
            ModelInfo("chat:1", "chat-1", {"id": "chat:1", "max_model_len": 64}, "chat", "1", 5),
            model("org/embed", "elsewhere"),
            model("stale", "embed"),
            model("sql", "embed+sql-1", parent="org/embed"),
            model("other", "another-fleets-pool"),
        )
    }
    models = merged(declared(), known)
    assert "chat" not in models
    assert "stale" not in models
    assert models["chat:1"].card["max_model_len"] == 64
    assert models["chat:1"].weight == 90
    assert models["org/embed"].pool == "embed"
    assert models["sql"].pool == "embed+sql-1"
    assert models["other"].pool == "another-fleets-pool"
    assert merged({}, known) == known
