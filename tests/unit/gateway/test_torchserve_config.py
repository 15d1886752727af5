"""TorchServe's model_config.yaml with a vLLM handler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.launcher.torchserve_config import convert
from shared.fleet.pools import load_pools
from shared.platform.config_file import parse
from shared.platform.settings import SettingsError
from tests.harness.settings import Settings

LORA = """\
# TorchServe frontend parameters
minWorkers: 1
maxWorkers: 2
maxBatchDelay: 100
startupTimeout: 1200
responseTimeout: 300
deviceType: "gpu"
asyncCommunication: true
jobQueueSize: 50
clientTimeoutInMills: 5000
parallelLevel: 2

handler:
    model_path: "model/snapshot"
    vllm_engine_config:
        enable_lora: true
        max_loras: 4
        max_model_len: 250
        download_dir: null
        served_model_name:
            - "meta-llama/Meta-Llama-3.1-8B"
            - "llama-8b-lora"
    adapters:
        adapter_1: "adapters/summarize"
"""
WHERE = Path("/store/llama/model-config.yaml")


def converted(text: str) -> Any:
    return convert(parse(text, "x"), WHERE, "llama", lambda path: "snapshot" in path.name)


def test_the_guides_file_becomes_a_pool() -> None:
    file, unused = converted(LORA)
    assert unused == []
    assert file["engine_stall_s"] == 300
    settings = Settings(**file)
    (pool,) = load_pools(settings).all
    assert pool.name == "llama"
    assert pool.model == "/store/llama/model/snapshot"
    assert pool.served_names == ("meta-llama/Meta-Llama-3.1-8B", "llama-8b-lora")
    assert (pool.range, pool.startup_timeout_s) == ((1, 2), 1200)
    assert (pool.max_queue_depth, pool.queue_deadline_s) == (50, 5)
    assert list(pool.adapters) == ["adapter_1"]
    assert pool.engine_args.endswith(
        "--enable-lora --max-loras 4 --max-model-len 250 --tensor-parallel-size 2"
    )
    assert '"path": "adapters/summarize"' in pool.engine_args


def test_a_hub_id_stays_one_and_the_engines_own_size_counts() -> None:
    file, _ = converted(
        "parallelLevel: 4\nhandler: {vllm_engine_config: {model: org/m, tensor_parallel_size: 2,"
        " served_model_name: m}}\n"
    )
    pool = file["pools"]["llama"]
    assert pool["model"] == "org/m"
    assert pool["served_names"] == ["m"]
    assert pool["engine_args"] == {"tensor_parallel_size": 2}


def test_a_name_that_is_a_number_is_its_digits() -> None:
    file, _ = converted("handler: {vllm_engine_config: {model: m, served_model_name: 7}}\n")
    assert file["pools"]["llama"]["served_names"] == ["7"]


def test_what_means_nothing_here_is_named() -> None:
    _, unused = converted(
        "deviceIds: [0]\nhandler: {model_path: m, converter: {}, vllm_engine_config: {}}\n"
    )
    assert unused == ["deviceIds", "handler.converter"]


@pytest.mark.parametrize(
    "text",
    [
        "minWorkers: 1\n",
        "handler: {}\n",
        "handler: [1]\n",
        "handler: {adapters: x, model_path: m}\n",
        "clientTimeoutInMills: 5 s\nhandler: {model_path: m}\n",
        "clientTimeoutInMills:\nhandler: {model_path: m}\n",
        "clientTimeoutInMills: yes\nhandler: {model_path: m}\n",
    ],
)
def test_a_file_for_another_handler_or_with_wrong_values_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=str(WHERE)):
        converted(text)
