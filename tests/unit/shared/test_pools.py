"""Pools: how the variables of a process describe them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from shared.fleet.pools import Pool, load_pools, pool_name
from shared.platform.settings import Settings


def test_without_variables_there_is_the_demo_models_pool() -> None:
    pools = load_pools(Settings())
    assert pools.own.name == pools.own.served_model_name == "flotilla-demo"
    assert pools.own.autoscale is None
    assert pools.others == pools.autoscaled == ()


@pytest.mark.parametrize(
    ("variables", "model", "name"),
    [
        ({"engine": "simulated"}, "simulated", "simulated"),
        ({"model": "my/Model"}, "my/Model", pool_name("my/Model")),
        ({"model": "/models/x", "served_model_name": "x"}, "x", "x"),
        ({"model": "my/Model", "pool": "big"}, "my/Model", "big"),
    ],
)
def test_variables_describe_the_process_own_pool(
    variables: dict[str, str], model: str, name: str
) -> None:
    own = load_pools(Settings(**variables)).own  # type: ignore[arg-type]
    assert (own.served_model_name, own.name) == (model, name)
    assert own.engine == variables.get("engine", "vllm")


def test_autoscale_names_the_own_pool_and_others() -> None:
    settings = Settings(model="a", autoscale="a=1:3,b=0:2", autoscale_idle_s=7, max_queue_depth=9)
    pools = load_pools(settings)
    assert [pool.name for pool in pools.autoscaled] == ["a", "b"]
    assert [pool.name for pool in pools.others] == ["b"]
    assert pools.own.autoscale is not None
    assert (pools.own.autoscale.min, pools.own.autoscale.max) == (1, 3)
    assert pools.own.autoscale.idle_s == 7
    assert pools.others[0].max_queue_depth == 9
    assert pools.others[0].model == ""
    only_others = load_pools(Settings(autoscale="b=0:2"))
    assert [pool.name for pool in only_others.autoscaled] == ["b"]


def test_a_worker_joins_the_pool_of_the_model_that_its_engine_names() -> None:
    own = load_pools(Settings()).own
    assert own.model_copy(update={"served_model_name": "other"}).name == "other"
    named = load_pools(Settings(pool="big")).own
    assert named.model_copy(update={"served_model_name": "other"}).name == "big"


def test_a_pool_refuses_what_it_does_not_have() -> None:
    with pytest.raises(ValidationError):
        Pool(served_model_name="a", max_queue_depth=1, colour="red")  # type: ignore[call-arg]
