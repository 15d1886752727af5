"""Pools: how the variables of a process, or flotilla.yaml, describe them."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from shared.fleet.pool import pool_name
from shared.fleet.pools import load_pools
from shared.platform.settings import SettingsError
from tests.harness.settings import Settings


def test_without_variables_there_is_the_demo_models_pool() -> None:
    pools = load_pools(Settings())
    assert pools.own.name == pools.own.served_names[0] == "flotilla-demo"
    assert pools.own.limits is None
    assert pools.others == pools.autoscaled == ()
    assert not pools.declared


@pytest.mark.parametrize(
    ("variables", "model", "name"),
    [
        ({"engine": "simulated"}, "simulated", "simulated"),
        ({"model": "my/Model"}, "my/Model", pool_name("my/Model")),
        ({"model": "/models/x", "served_model_name": "x"}, "x", "x"),
        ({"model": "/models/x", "served_model_name": "x, y"}, "x", "x"),
        ({"model": "my/Model", "pool": "big"}, "my/Model", "big"),
    ],
)
def test_variables_describe_the_process_own_pool(
    variables: dict[str, str], model: str, name: str
) -> None:
    own = load_pools(Settings(**variables)).own  # type: ignore[arg-type]
    assert (own.served_names[0], own.name) == (model, name)
    assert own.engine == variables.get("engine", "vllm")


def test_autoscale_names_the_own_pool_and_others() -> None:
    settings = Settings(model="a", autoscale="a=1:3,b=0:2", autoscale_idle_s=7, max_queue_depth=9)
    pools = load_pools(settings)
    assert [pool.name for pool in pools.autoscaled] == ["a", "b"]
    assert [pool.name for pool in pools.others] == ["b"]
    assert pools.own.limits is not None
    assert (pools.own.limits.min, pools.own.limits.max) == (1, 3)
    assert pools.own.limits.idle_s == 7
    assert pools.own.range == (1, 3)
    assert pools.others[0].max_queue_depth == 9
    assert pools.others[0].model == ""
    only_others = load_pools(Settings(autoscale="b=0:2"))
    assert [pool.name for pool in only_others.autoscaled] == ["b"]


def test_a_worker_joins_the_pool_of_the_model_that_its_engine_names() -> None:
    own = load_pools(Settings()).own
    assert own.name_with("other") == "other"
    named = load_pools(Settings(pool="big")).own
    assert named.name_with("other") == "big"


# --- flotilla.yaml ---


def declared(**pools: dict[str, Any]) -> Settings:
    return Settings(pools=pools)  # type: ignore[arg-type]


def test_the_file_lists_pools_with_all_that_belongs_to_them() -> None:
    settings = Settings(
        max_queue_depth=7,
        autoscale_idle_s=9,
        pools={  # type: ignore[arg-type]
            "chat": {
                "model": "org/chat",
                "served_names": ["chat", "assistant"],
                "version": "2",
                "weight": 10,
                "engine_args": {"max_model_len": 64, "compilation_config": {"level": 0}},
                "adapters": {"sql": "/adapters/sql"},
                "sampling": {"temperature": 0.5, "max_tokens": 9},
                "min_workers": 0,
                "max_workers": 3,
                "autoscale": {"down_after_s": 1},
                "queue_deadline_s": 60,
                "startup_timeout_s": 100,
                "max_queue_depth": 5,
                "allow_fields": ["priority"],
            },
            "embed": {"engine": "simulated", "workers": 2},
        },
    )
    pools = load_pools(settings)
    assert pools.declared
    chat, embed = pools.all
    assert (chat.name, chat.served_names) == ("chat", ("chat", "assistant"))
    assert chat.engine_names == ("chat", "assistant", "chat:2", "assistant:2")
    assert shlex.split(chat.engine_args) == [
        "--override-generation-config",
        '{"temperature": 0.5, "max_new_tokens": 9}',
        "--enable-lora",
        "--lora-modules",
        '{"name": "sql", "path": "/adapters/sql"}',
        "--max-model-len",
        "64",
        "--compilation-config",
        '{"level": 0}',
    ]
    assert tuple(chat.adapters) == ("sql",)
    assert (chat.max_queue_depth, embed.max_queue_depth) == (5, 7)
    assert (chat.startup_timeout_s, chat.queue_deadline_s) == (100, 60)
    assert (chat.has_deadlines, embed.has_deadlines) == (True, False)
    assert chat.allow_fields == ("priority",)
    assert [pool.name for pool in pools.autoscaled] == ["chat"]
    assert chat.limits is not None
    limits = chat.limits
    assert (limits.min, limits.max, limits.down_after_s, limits.idle_s) == (0, 3, 1, 9)
    assert (embed.served_names[0], embed.range) == ("simulated", (2, 2))


def test_a_worker_names_its_pool_unless_there_is_only_one() -> None:
    settings = declared(a={"model": "a"}, b={"model": "b"})
    with pytest.raises(SettingsError, match="FLOTILLA_POOL='' must name the worker's pool: a, b"):
        _ = load_pools(settings).own
    joined = settings.model_copy(update={"pool": "b"})
    assert load_pools(joined).own.model == "b"
    with pytest.raises(SettingsError, match="FLOTILLA_POOL='c'"):
        load_pools(settings.model_copy(update={"pool": "c"}))
    assert load_pools(declared(a={"model": "a"})).own.name == "a"


def test_what_a_pool_does_not_set_is_as_in_the_fleets_settings() -> None:
    settings = Settings(
        max_queue_depth=7,
        docker_service="s",
        allow_fields="priority",  # type: ignore[arg-type]
        pools={  # type: ignore[arg-type]
            "a": {},
            "b": {"engine": "simulated", "allow_fields": ["seed"]},
        },
    )
    a, b = load_pools(settings).all
    assert (a.engine, b.engine) == ("vllm", "simulated")
    assert (a.max_queue_depth, a.docker_service, b.docker_service) == (7, "s", "s")
    assert (a.allow_fields, b.allow_fields) == (("priority",), ("priority", "seed"))
    assert load_pools(Settings(allow_fields="*")).own.allows("priority")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pools", "problem"),
    [
        ({"a": {"model": "m"}, "b": {"model": "m"}}, "both serve 'm': give each a `version`"),
        (
            {"a": {"model": "m", "version": 1}, "b": {"model": "m", "version": 1}},
            "both serve 'm:1'",
        ),
        (
            {"a": {"model": "m", "version": 1}, "b": {"model": "m"}},
            "some of the pools that serve 'm' have a `version`",
        ),
        (
            {"a": {"model": "m", "adapters": {"x": "/x"}}, "b": {"model": "x"}},
            "both serve 'x'",
        ),
        ({"a": {"sampling": {"seed": 1}}}, "pools.a: `seed` has no default in vLLM"),
        ({"a": {"engine_args": "--x '"}}, "pools.a: No closing quotation"),
    ],
)
def test_a_name_leads_to_one_pool(pools: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load_pools(declared(**pools))


def test_versions_of_a_model_may_have_the_same_adapters() -> None:
    pools = load_pools(
        declared(
            a={"model": "m", "version": 1, "adapters": {"x": "/1"}},
            b={"model": "m", "version": 2, "adapters": {"x": "/2"}},
        )
    )
    assert [pool.adapters for pool in pools.all] == [{"x": "/1"}, {"x": "/2"}]


@pytest.mark.parametrize(
    ("model", "pool"),
    [
        ("qwen3-0.6b", "qwen3-0.6b"),
        ("Qwen/Qwen3-0.6B", "qwen-qwen3-0.6b-"),
        ("a:b{c} \n", "a-b-c-"),
        ("模型", "model-"),
        ("x" * 41, "x" * 40 + "-"),
    ],
)
def test_a_pools_name_is_readable_and_safe_in_a_key(model: str, pool: str) -> None:
    name = pool_name(model)
    assert name == pool if not pool.endswith("-") else name.startswith(pool)
    assert len(name) <= 49
    assert not set(name) & set(":{} \n/")
    alike = ["a/b", "a-b", "A-b", "a b", "a--b", "a-b-", "", "model", "x" * 40, "x" * 41, model]
    assert len({*map(pool_name, alike)}) == len(set(alike))
