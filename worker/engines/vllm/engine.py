"""vLLM in this process: its engine, and its own FastAPI application called without a socket.

It works with vLLM 0.24 to 0.33, which moved modules in between; the tests run 0.32.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from starlette.types import Receive, Scope, Send

from shared.api.field_policy import MAX_LOGPROBS_AT_ONCE
from shared.fleet.pool import Pool
from shared.platform import settings as environment
from worker.engines.interface import Capacity, Load
from worker.engines.vllm import (
    arguments,
    cpu_memory,
    first_errors,
    group_health,
    input_errors,
    parent_death,
    release,
    stream_chunks,
    token_texts,
)
from worker.engines.vllm.grammar_check import GrammarChecker
from worker.engines.vllm.rendered_context import Contexts
from worker.engines.vllm.vllm_settings import VllmSettings
from worker.engines.vllm.warm_up import warm_up

# Set only after vLLM was imported: at import they would also make it log tracebacks of all refused
# requests.
OPERATOR_ROUTES = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""With these vLLM's application has the routes of `shared/api/operator_actions.py`. Nothing else
reaches them: it is called in this process only."""


class VllmEngine:
    """Implements `worker.engines.interface.Engine`."""

    def __init__(self, settings: VllmSettings, pool: Pool) -> None:
        self.kind = "vllm"
        self.on_step: Callable[[], None] = lambda: None
        self._settings = settings
        self._pool = pool
        self._engine: Any = None
        self._app: Any = None
        self._capacity: Capacity | None = None
        self._kv_usage = 0.0
        self._grammars: GrammarChecker | None = None
        self._group: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the model. Raises SettingsError if vLLM's arguments are wrong."""
        arguments.set_defaults(self._pool)
        # In a thread, because it takes ten seconds in which probes and signals have to be handled.
        v = await asyncio.to_thread(release.load)
        self.kind = f"vllm {v.version}"
        args = arguments.parse(v, self._pool, self._settings.otlp_traces_endpoint)
        v.choose_model_runner(prefills=v.prefill_resume.usable())
        if v.on_cpu():
            # One process for the engine instead of two: a CPU is one device.
            environment.set_engine_defaults({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
        config = v.AsyncEngineArgs.from_cli_args(args).create_engine_config()
        if v.on_cpu() and not args.memory_share_is_set:
            model, memory_bytes = config.model_config, self._settings.worker_memory_bytes
            tensors = v.tensors(model.model, revision=model.revision)
            cpu_memory.size_kv_cache(config, tensors, memory_bytes)
        _prepare_forks(v)
        contexts = await Contexts.start(config.model_config)
        of_model = config.model_config
        if of_model.runner_type != "pooling" and not of_model.skip_tokenizer_init:  # has grammars
            self._grammars = GrammarChecker(config)
            await self._grammars.start()
        # Before vLLM forks its engine. The logits processor is added only where it is needed: with
        # one, vLLM copies every request's tokens to the host in every step.
        if not v.prefill_resume.install():
            v.install_forced_replay(config)
        self._engine = v.AsyncLLM.from_vllm_config(
            config, stat_loggers=[self._stat_logger(v)], disable_log_stats=args.disable_log_stats
        )
        core = self._engine.engine_core
        core.get_output_async = _after_a_turn(core.get_output_async)
        tasks = await self._engine.get_supported_tasks()
        v.install_collector()
        for name, value in OPERATOR_ROUTES.items():
            environment.set_engine_variable(name, value)
        app = v.build_app(args, tasks, self._engine.model_config)
        first_errors.install(app)
        input_errors.install(app)
        token_texts.install(self._engine.renderer.tokenizer)
        engine = v.JournalledEngine(
            self._engine,
            self._grammars,
            config.scheduler_config.max_num_seqs,
            contexts,
            cache_per_tenant=not self._settings.share_prompt_cache,
            max_logprobs_at_once=MAX_LOGPROBS_AT_ONCE,
        )
        await v.init_app_state(engine, app.state, args, tasks)
        stream_chunks.install(app.state)
        # When the engine dies, vLLM's error handlers set this attribute of their server. Here the
        # worker polls `dead` instead.
        app.state.server = SimpleNamespace(should_exit=False)
        if "generate" in tasks:
            await warm_up(self._engine)
        if group_health.spans_machines(config.parallel_config):
            self._group = asyncio.create_task(group_health.until_broken(self._engine))
        self._app = app
        cache = config.cache_config
        self._capacity = Capacity(
            max_num_seqs=config.scheduler_config.max_num_seqs,
            max_model_len=config.model_config.max_model_len,
            max_loras=config.lora_config.max_loras if config.lora_config else 0,
            kv_tokens=(cache.num_gpu_blocks or 0) * (cache.block_size or 0),
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
        if self._group is not None and self._group.done():
            return True
        return self._engine is not None and bool(self._engine.errored)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one HTTP request with vLLM's own application."""
        assert self._app is not None, "call start first"
        answered: Awaitable[None] = self._app(scope, receive, send)
        return answered

    def close(self) -> None:
        """Shut the engine down without waiting for requests."""
        if self._grammars is not None:
            self._grammars.close()
        if self._group is not None:
            self._group.cancel()
        if self._engine is not None:
            self._engine.shutdown(timeout=0)

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


def _after_a_turn(get_output: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """Gives other tasks a turn between two steps: vLLM's output handler waits only if it has none
    to handle, which is seconds later where many log probabilities were asked for."""

    async def get() -> Any:
        await asyncio.sleep(0)
        return await get_output()

    return get


def _prepare_forks(v: SimpleNamespace) -> None:
    """On a CPU processes are forked: they have the imports already, 3 s instead of 30."""
    if not v.on_cpu():
        return  # CUDA must not be forked
    # vLLM sets `spawn` while it makes the config, so `fork` is set after that.
    parent_death.at_fork()
    # A process must request AMX from the kernel before it uses it; forks inherit that. vLLM leaves
    # the request to other libraries. If its own attention is the first to use AMX, the process dies
    # of an illegal instruction.
    v.init_amx()
    environment.set_engine_variable("VLLM_WORKER_MULTIPROC_METHOD", "fork")
