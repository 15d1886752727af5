"""vLLM in this process: its engine, and its own FastAPI application called without a socket.

It works with vLLM 0.32 and 0.33, which moved modules in between; the tests run 0.32.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from shared.api.field_policy import MAX_LOGPROBS_AT_ONCE
from shared.fleet.pool import Pool
from shared.platform import settings as environment
from shared.platform.death_signal import request_signal
from worker.engines.interface import JOURNAL, NO_ROUTE, Capacity, Load
from worker.engines.vllm import args as vllm_args
from worker.engines.vllm import checksums, chunks
from worker.engines.vllm.grammars import GrammarChecker

if TYPE_CHECKING:
    from worker.engines.vllm.continuation import Ways
    from worker.engines.vllm.journal import JournalledLLM

log = logging.getLogger("flotilla.engine")

# Set only after vLLM was imported: at import they would also make it log tracebacks of all refused
# requests.
OPERATOR_ROUTES = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""With these vLLM's application has the routes of `shared/api/operator_actions.py`. Nothing else
reaches them: it is called in this process only."""
_IMPORTS = (
    "vllm.engine.arg_utils",
    "vllm.entrypoints.launchers.app",
    "vllm.entrypoints.launchers.api_server.app_state",
    "vllm.v1.metrics.loggers",
    "worker.engines.vllm.journal",
)
CAUSED_BY_INPUT = (AttributeError, LookupError, RecursionError, AssertionError, ArithmeticError)
_MAX_ERROR_CHARS = 300
GROUP_CHECK_S = 5.0
_GROUP_TIMEOUT_S = 4.0
"""With GROUP_CHECK_S, an idle engine is found broken within 10 s."""
_LISTS = frozenset({"list", "tuple", "set", "frozenset"})
_NO_SCHEMAS = frozenset({"metadata", "serialization", "default"})


def load_vllm() -> None:
    """Import all that a worker needs of vLLM, which takes ten seconds."""
    for name in _IMPORTS:
        import_module(name)


class VllmEngine:
    """Implements `worker.engines.interface.Engine`."""

    def __init__(self, settings: vllm_args.VllmSettings, pool: Pool) -> None:
        self.kind = "vllm"
        self.on_step: Callable[[], None] = lambda: None
        self._settings = settings
        self._pool = pool
        self._engine: JournalledLLM | None = None
        self._ways: Ways | None = None
        self._app: Any = None
        self._capacity: Capacity | None = None
        self._kv_usage = 0.0
        self._grammars: GrammarChecker | None = None
        self._group: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the model. Raises SettingsError if vLLM's arguments are wrong."""
        vllm_args.set_defaults(self._pool)
        # In a thread, because it takes ten seconds in which probes and signals have to be handled.
        await asyncio.to_thread(load_vllm)
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app
        from vllm.platforms import current_platform

        from worker.engines.vllm.continuation import Ways
        from worker.engines.vllm.journal import JournalledLLM

        self.kind = f"vllm {vllm.__version__}"
        on_cpu = bool(current_platform.is_cpu())
        endpoint = self._settings.otlp_traces_endpoint
        gpus = 1 if on_cpu else int(current_platform.device_count())
        args = vllm_args.parse(self._pool, endpoint, gpus)
        if on_cpu:
            # One process for the engine instead of two: a CPU is one device.
            environment.set_engine_defaults({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
        config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
        model = config.model_config
        if on_cpu:
            if not args.memory_share_is_set:
                tensors = _tensors(model)
                vllm_args.size_kv_cache(config, tensors, self._settings.worker_memory_bytes)
            _prepare_forks()
        weights = await asyncio.to_thread(
            checksums.checksum_of_weights, str(model.model), getattr(model, "revision", None)
        )
        if model.runner_type != "pooling" and not model.skip_tokenizer_init:  # has grammars
            self._grammars = GrammarChecker(config)
            await self._grammars.start()
        self._ways = Ways(config, on_cpu=on_cpu)
        self._engine = engine = JournalledLLM(
            config,
            self._ways,
            self._grammars,
            checksums.Contexts(weights),
            cache_per_tenant=not self._settings.share_prompt_cache,
            max_logprobs_at_once=MAX_LOGPROBS_AT_ONCE,
            hides_texts=bool(args.middleware),
            stat_loggers=[self._stat_logger()],
            log_stats=not args.disable_log_stats,
        )
        tasks = await engine.get_supported_tasks()
        for name, value in OPERATOR_ROUTES.items():
            environment.set_engine_variable(name, value)
        self._app = app = build_app(args, tasks, model)
        end_lists_at_first_error(app)
        answer_errors(app)
        await init_app_state(engine, app.state, args, tasks)
        chunks.install(app.state)
        # When the engine dies, vLLM's error handlers set this attribute of their server. Here the
        # worker polls `dead` instead.
        app.state.server = SimpleNamespace(should_exit=False)
        if "generate" in tasks:
            await warm_up(engine)
        parallel = config.parallel_config
        if parallel.nnodes > 1 or parallel.distributed_executor_backend == "ray":
            self._group = asyncio.create_task(until_broken(engine))
        cache = config.cache_config
        self._capacity = Capacity(
            max_num_seqs=config.scheduler_config.max_num_seqs,
            max_model_len=model.max_model_len,
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
        assert self._engine is not None, "call start first"
        unfinished = self._engine.get_num_unfinished_requests()
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
        if self._ways is not None:
            self._ways.close()

    def _stat_logger(self) -> type:
        """A stat logger class, which vLLM calls once per step, after it has queued all outputs."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        engine = self

        class StepLogger(StatLoggerBase):  # type: ignore[misc]
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                pass

            def record(self, scheduler_stats: Any = None, *_: Any, **__: Any) -> None:
                if scheduler_stats is not None:
                    engine._kv_usage = scheduler_stats.kv_cache_usage
                engine.on_step()

            def log_engine_initialized(self) -> None:
                pass

        return StepLogger


def _tensors(model: Any) -> list[Any]:
    """What the headers of a model's safetensors say; empty if it has none that can be read."""
    try:
        from vllm.transformers_utils.config import get_safetensors_params_metadata

        return list(get_safetensors_params_metadata(model.model, revision=model.revision).values())
    except Exception as error:  # of a hub's library, of a release without the function
        log.warning("the size of the weights of %s is not known: %r", model.model, error)
        return []


def _prepare_forks() -> None:
    """On a CPU processes are forked: they have the imports already, 3 s instead of 30.

    vLLM sets `spawn` while it makes the config, so `fork` is set after that.
    """
    from torch.cpu import _init_amx

    # multiprocessing sets parent_process() only later in the child's start-up.
    os.register_at_fork(after_in_child=lambda: request_signal(signal.SIGKILL))
    # A process must request AMX from the kernel before it uses it; forks inherit that. vLLM leaves
    # the request to other libraries. If its own attention is the first to use AMX, the process dies
    # of an illegal instruction.
    _init_amx()
    environment.set_engine_variable("VLLM_WORKER_MULTIPROC_METHOD", "fork")


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. A worker killed with SIGKILL can't
    clean up, and vLLM's engine would live on with the KV cache.

    vLLM calls it in each process that it spawns (`vllm.general_plugins` in pyproject.toml).
    """
    if sys.platform != "linux" or multiprocessing.parent_process() is None:
        return
    parent = os.getppid()
    request_signal(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the request
        os.kill(os.getpid(), signal.SIGKILL)


async def warm_up(engine: Any) -> None:
    """Have vLLM compile what it compiles at the first request that needs it: all other requests
    wait meanwhile, 3.7 s for log probabilities of a prompt, on a CPU.

    `engine`: an AsyncLLM that generates text.
    """
    from vllm.sampling_params import SamplingParams

    for params in (
        SamplingParams(max_tokens=1, temperature=1.0, logprobs=1),
        SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1),
    ):
        try:
            prompt = {"prompt_token_ids": [1, 1]}
            async for _ in engine.generate(prompt, params, f"warm-up-{params.logprobs}"):
                pass
        except Exception as error:
            if engine.errored:
                raise
            log.info("a request to warm up was refused: %s", error)


async def until_broken(engine: Any) -> None:
    """Return when a process of an engine on several machines, or with Ray, does not answer.
    `engine`: an AsyncLLM.

    vLLM watches the processes of the head's machine only, so it is asked while there are no
    requests; a step that fails ends the engine by itself.
    """
    while True:
        await asyncio.sleep(GROUP_CHECK_S)
        if engine.get_num_unfinished_requests():
            continue
        try:
            async with asyncio.timeout(_GROUP_TIMEOUT_S + 1):
                await engine.collective_rpc("check_health", timeout=_GROUP_TIMEOUT_S)
        except Exception as error:
            # A request that has come meanwhile may delay the call. VLLM's own errors are no
            # TimeoutError.
            if isinstance(error, TimeoutError) and engine.get_num_unfinished_requests():
                continue
            log.error("a machine of the engine does not answer: %r", error)
            return


def answer_errors(app: Any) -> None:
    """Have vLLM's application answer 400 where its code fails because of what a request contains;
    its own answer is 500. Before a request has reached the engine, such an exception has one cause:
    the request. FastAPI's own errors, such as those for routes that vLLM does not have for this
    kind of model, get OpenAI's shape, too."""
    from starlette.exceptions import HTTPException
    from starlette.responses import JSONResponse
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    async def answer(request: Any, error: Exception) -> JSONResponse:
        # The journal of a job is its output buffer; others do not count.
        if getattr(JOURNAL.get(), "reached_engine", True):
            raise error
        log.warning("vLLM can't handle a request, which is answered with 400", exc_info=error)
        text = f"This request can't be processed: {type(error).__name__}: {error}"
        refusal = create_error_response(ValueError(text[:_MAX_ERROR_CHARS]))
        return JSONResponse(refusal.model_dump(), status_code=refusal.error.code)

    async def in_openais_shape(request: Any, error: HTTPException) -> JSONResponse:
        status, text = HTTPStatus(error.status_code), str(error.detail)
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            text = f"{NO_ROUTE} {request.method} {request.url.path}: {text}"
        refusal = create_error_response(text, f"{status.phrase.replace(' ', '')}Error", status)
        return JSONResponse(refusal.model_dump(), status.value, error.headers)

    app.exception_handler(HTTPException)(in_openais_shape)
    for kind in CAUSED_BY_INPUT:
        app.exception_handler(kind)(answer)
    if app.middleware_stack is not None:  # made by a library that adds routes of its own
        app.middleware_stack = app.build_middleware_stack()


def end_lists_at_first_error(app: Any) -> None:
    """Have the validation of bodies end at a list's first wrong element, before the first request.

    Pydantic collects all errors: a list of a thousand wrong items, each of which may be one of
    sixty types, has 233,000 of them, which take seconds and gigabytes on the event loop.
    """
    from pydantic_core import SchemaValidator

    for route in app.routes:
        for field in getattr(getattr(route, "dependant", None), "body_params", ()):
            adapter = field._type_adapter  # noqa: SLF001
            # Without the validators of models that were made before, which collect all errors.
            adapter.validator = SchemaValidator(fail_fast(adapter.core_schema), _use_prebuilt=False)


def fail_fast(schema: Any) -> Any:
    """A copy of a schema of pydantic's core in which each list ends at its first wrong element."""
    if type(schema) is list or type(schema) is tuple:
        return type(schema)(map(fail_fast, schema))
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    # Without one, these are fields by their names.
    kept = _NO_SCHEMAS if isinstance(kind, str) else frozenset[str]()
    copy = {name: of if name in kept else fail_fast(of) for name, of in schema.items()}
    if isinstance(kind, str) and kind in _LISTS:
        copy["fail_fast"] = True
    return copy
