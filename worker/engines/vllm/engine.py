"""vLLM in this process: its engine, and its own FastAPI application called without a socket.

It works with vLLM 0.24 to 0.33, which moved modules in between; the tests run 0.32.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from shared.fleet.pool import Pool
from shared.platform import settings as environment
from shared.platform import tracing
from shared.platform.settings import SettingsError
from worker.demo import MODEL_DIR
from worker.engines.interface import Capacity, Load
from worker.engines.vllm import parent_death, plain_chunks
from worker.engines.vllm.gpu_args import with_gpus
from worker.engines.vllm.guards import Guards
from worker.engines.vllm.server_args import (
    IGNORED,
    MEDIA_URLS,
    REFUSED,
    set_in_vain,
    with_media_domains,
)
from worker.engines.vllm.vllm_settings import VllmSettings
from worker.engines.vllm.warm_up import warm_up

log = logging.getLogger("flotilla.engine")

DEFAULTS = {
    "VLLM_NO_USAGE_STATS": "1",
    # A step with more outputs than this is split over several turns of the event loop, each of
    # which would be flushed on its own.
    "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": "4096",
    # Choices per request: an unbounded `n` blocks the event loop (CVE-2026-34756).
    "VLLM_MAX_N_SEQUENCES": "64",
}
# Set only after vLLM was imported: at import they would also make it log tracebacks of all refused
# requests.
OPERATOR_ROUTES = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""With these vLLM's application has the routes of `shared/api/operator_actions.py`. Nothing else
reaches them: it is called in this process only."""
# OpenMP's threads spin while they wait for each other. With one per core, any other process delays
# every step: on two cores the small model generates up to twice as fast with one.
DEMO_DEFAULTS = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
DEMO_ARGS = (
    "--max-model-len 4096 --max-num-seqs 64 --enforce-eager --dtype bfloat16 "
    "--kv-cache-memory-bytes 268435456 --enable-auto-tool-choice --tool-call-parser hermes"
)
"""The KV cache is small: the kernel frees it, 0.1 s per GB, before a killed engine's end shows."""
_TRACES = "--otlp-traces-endpoint"


class VllmEngine:
    """Implements `worker.engines.interface.Engine`."""

    def __init__(self, settings: VllmSettings, pool: Pool) -> None:
        self.kind = "vllm"
        self.on_step: Callable[[], None] = lambda: None
        self._settings = settings
        self._pool = pool
        self._engine: Any = None
        self._app: Any = None
        self._entry: ASGIApp | None = None
        self._capacity: Capacity | None = None
        self._kv_usage = 0.0
        self._guards = Guards(settings)

    async def start(self) -> None:
        """Load the model. Raises SettingsError if vLLM's arguments are wrong."""
        environment.set_engine_defaults(DEFAULTS)
        if not self._pool.model:
            environment.set_engine_defaults(DEMO_DEFAULTS)
        # In a thread, because it takes ten seconds in which probes and signals have to be handled.
        v = await asyncio.to_thread(import_vllm)
        self.kind = f"vllm {v.version}"
        args = self._arguments(v)
        v.choose_model_runner(prefills=v.prefills.enabled())
        if v.on_cpu():
            # One process for the engine instead of two: a CPU is one device.
            environment.set_engine_defaults({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
        config = v.AsyncEngineArgs.from_cli_args(args).create_engine_config()
        if v.on_cpu():
            # A forked process has the imports already: 3 s instead of 30. CUDA must not be forked.
            # vLLM sets `spawn` while it makes the config, so `fork` is set after that.
            parent_death.at_fork()
            # A process must request AMX from the kernel before it uses it; forks inherit that. vLLM
            # leaves the request to other libraries. If its own attention is the first to use AMX,
            # the process dies of an illegal instruction.
            v.init_amx()
            environment.set_engine_variable("VLLM_WORKER_MULTIPROC_METHOD", "fork")
        await self._guards.start(
            config, lambda tasks: v.build_app(args, tasks, config.model_config)
        )
        # Before vLLM forks its engine. The logits processor is added only where it is needed: with
        # one, vLLM copies every request's tokens to the host in every step.
        if not v.install_prefill_resume():
            v.install_forced_replay(config)
        self._engine = v.AsyncLLM.from_vllm_config(
            config, stat_loggers=[self._stat_logger(v)], disable_log_stats=args.disable_log_stats
        )
        tasks = await self._engine.get_supported_tasks()
        v.install_collector()
        for name, value in OPERATOR_ROUTES.items():
            environment.set_engine_variable(name, value)
        app = v.build_app(args, tasks, self._engine.model_config)
        engine = self._guards.install(app, self._engine, config)
        await v.init_app_state(engine, app.state, args, tasks)
        plain_chunks.install(app.state)
        # When the engine dies, vLLM's error handlers set this attribute of their server. Here the
        # worker polls `dead` instead.
        app.state.server = SimpleNamespace(should_exit=False)
        if "generate" in tasks:
            await warm_up(self._engine)
        self._app = app
        self._entry = self._guards.around(app)
        self._capacity = Capacity(
            max_num_seqs=config.scheduler_config.max_num_seqs,
            max_model_len=config.model_config.max_model_len,
            max_loras=config.lora_config.max_loras if config.lora_config else 0,
        )

    @property
    def capacity(self) -> Capacity:
        """See `Engine.capacity`."""
        assert self._capacity is not None, "known after start"
        return self._capacity

    def load(self) -> Load:
        """See `Engine.load`."""
        unfinished = self._engine.output_processor.get_num_unfinished_requests()
        # The KV usage is the last step's, which is outdated once the engine is idle.
        return Load(unfinished, self._kv_usage if unfinished else 0.0)

    @property
    def dead(self) -> bool:
        """See `Engine.dead`."""
        return self._engine is not None and bool(self._engine.errored)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one HTTP request with vLLM's own application."""
        assert self._entry is not None, "call start first"
        return self._entry(scope, receive, send)

    def close(self) -> None:
        """Shut the engine down without waiting for requests."""
        self._guards.close()
        if self._engine is not None:
            self._engine.shutdown(timeout=0)

    def _arguments(self, v: SimpleNamespace) -> Any:
        """VLLM's own arguments, parsed and checked by vLLM's own parser."""
        pool = self._pool
        argv = ["--model", pool.model or str(MODEL_DIR)]
        argv += ["--served-model-name", *pool.engine_names]
        if not pool.model:
            argv += shlex.split(DEMO_ARGS)
        argv += shlex.split(pool.engine_args)
        argv += _tracing_args(self._settings.otlp_traces_endpoint, pool.engine_args)
        argv = with_gpus(argv, v.gpus)
        argv = with_media_domains(argv, urls_allowed=pool.allows(MEDIA_URLS))
        parser = v.make_arg_parser(v.FlexibleArgumentParser())
        parser.print_usage = lambda *_: None  # 300 lines, which would hide the error
        try:
            args = parser.parse_args(argv)
            v.validate_parsed_serve_args(args)
        except SystemExit as error:  # argparse has printed why on stderr
            raise SettingsError(f"vLLM does not take these arguments: {argv}") from error
        if v.api_key:
            raise SettingsError(f"VLLM_API_KEY has no effect in a worker: {REFUSED['api_key']}")
        if refused := set_in_vain(REFUSED, args, parser.get_default):
            raise SettingsError("; ".join(refused))
        for text in set_in_vain(IGNORED, args, parser.get_default):
            log.warning(text)
        if args.tool_parser_plugin:
            v.ToolParserManager.import_tool_parser(args.tool_parser_plugin)
        return args

    def _stat_logger(self, v: SimpleNamespace) -> type:
        """A stat logger class, which vLLM calls once per step, after it has queued all outputs."""
        engine = self

        class StepLogger(v.StatLoggerBase):  # type: ignore[misc, name-defined]
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(self, scheduler_stats: Any = None, *_: Any, **__: Any) -> None:
                if scheduler_stats is not None:
                    engine._kv_usage = scheduler_stats.kv_cache_usage
                engine.on_step()

            def log_engine_initialized(self) -> None:
                pass

        return StepLogger


def import_vllm() -> SimpleNamespace:
    """Return all that this file uses of vLLM, from where the installed release has it."""
    import vllm
    from vllm import envs
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.tool_parsers import ToolParserManager
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import StatLoggerBase

    try:  # 0.33
        from vllm.entrypoints.common.cli_args import make_arg_parser, validate_parsed_serve_args
    except ImportError:
        try:  # 0.32
            from vllm.entrypoints.launchers.cli_args import (
                make_arg_parser,
                validate_parsed_serve_args,
            )
        except ImportError:  # 0.24
            from vllm.entrypoints.openai.cli_args import (
                make_arg_parser,
                validate_parsed_serve_args,
            )
    try:  # 0.32, 0.33
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app
    except ImportError:  # 0.24
        from vllm.entrypoints.openai.api_server import build_app, init_app_state
    from torch.cpu import _init_amx as init_amx

    from worker.engines.vllm.collector import install as install_collector
    from worker.engines.vllm.forced_replay import choose_model_runner
    from worker.engines.vllm.forced_replay import install as install_forced_replay
    from worker.engines.vllm.prefill_resume import PREFILLS
    from worker.engines.vllm.prefill_resume import install as install_prefill_resume

    def on_cpu() -> bool:
        from vllm.platforms import current_platform

        return bool(current_platform.is_cpu())

    def gpus() -> int:
        from vllm.platforms import current_platform

        return 1 if on_cpu() else int(current_platform.device_count())

    return SimpleNamespace(
        version=vllm.__version__,
        on_cpu=on_cpu,
        gpus=gpus,
        AsyncEngineArgs=AsyncEngineArgs,
        AsyncLLM=AsyncLLM,
        FlexibleArgumentParser=FlexibleArgumentParser,
        StatLoggerBase=StatLoggerBase,
        api_key=envs.VLLM_API_KEY,
        ToolParserManager=ToolParserManager,
        build_app=build_app,
        choose_model_runner=choose_model_runner,
        init_amx=init_amx,
        init_app_state=init_app_state,
        install_collector=install_collector,
        install_forced_replay=install_forced_replay,
        install_prefill_resume=install_prefill_resume,
        prefills=PREFILLS,
        make_arg_parser=make_arg_parser,
        validate_parsed_serve_args=validate_parsed_serve_args,
    )


def _tracing_args(endpoint: str, engine_args: str) -> list[str]:
    """Have vLLM send its own spans to where the worker's go; it can't write them to a file."""
    if not endpoint.startswith("http") or _TRACES in engine_args:
        return []
    environment.set_engine_defaults(tracing.ENGINE_VARIABLES)
    return [_TRACES, endpoint]
