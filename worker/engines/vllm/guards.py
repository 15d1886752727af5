"""The guards of vLLM against hostile requests: installed once, when the engine starts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp

from worker.engines.vllm.body_check import BodyChecker, CheckedBodies
from worker.engines.vllm.grammar_check import Compile, GrammarChecker
from worker.engines.vllm.rendered_context import Contexts
from worker.engines.vllm.trial_process import Limits
from worker.engines.vllm.vllm_settings import VllmSettings

log = logging.getLogger("flotilla.engine")


class Guards:
    """The guards of one engine."""

    def __init__(self, settings: VllmSettings) -> None:
        self._settings = settings
        self._contexts: Contexts | None = None
        self._grammars = GrammarChecker(
            Limits(settings.grammar_timeout_s, settings.grammar_memory_bytes)
        )
        self._bodies = BodyChecker(settings.validation_timeout_s)

    async def start(self, config: Any, build_app: Callable[[tuple[str, ...]], Any]) -> None:
        """Fork the processes that try requests, before the engine is. `config`: vLLM's.

        `build_app` makes vLLM's application for a model with these tasks.
        """
        from torch import cuda

        self._contexts = await Contexts.start(config.model_config)
        if cuda.is_initialized():  # a process that uses CUDA must not be forked
            log.warning("this process uses CUDA already: requests are not tried before vLLM's use")
            return
        pooling = config.model_config.runner_type == "pooling"
        await self._bodies.start(lambda: build_app(_pooling_tasks() if pooling else ("generate",)))
        if not (pooling or config.model_config.skip_tokenizer_init):  # then it has no grammars
            await self._grammars.start(lambda: _compilers(config))

    def install(self, app: Any, engine: Any, config: Any) -> Any:
        """Add the guards to vLLM's application, and return what has to be its engine.

        `engine`: an AsyncLLM. To be called before the application's first request.
        """
        from worker.engines.vllm import input_errors, large_texts, token_texts
        from worker.engines.vllm.journal import JournalledEngine
        from worker.engines.vllm.request_limits import RequestLimits

        input_errors.install(app)
        large_texts.install(engine.renderer)
        token_texts.install(engine.renderer.tokenizer)
        limits = RequestLimits(
            self._grammars,
            self._settings.max_prompt_logprobs,
            engine.model_config.get_vocab_size(),
            self._settings.max_logprobs_at_once,
        )
        slots = config.scheduler_config.max_num_seqs
        shared = self._settings.share_prompt_cache
        return JournalledEngine(engine, limits, slots, self._contexts, cache_per_tenant=not shared)

    def around(self, app: Any) -> ASGIApp:
        """What jobs call instead of vLLM's application, once it has all its routes."""
        return CheckedBodies(app, self._bodies)

    def close(self) -> None:
        """End the processes that try requests."""
        self._grammars.close()
        self._bodies.trials.close()


def _pooling_tasks() -> tuple[str, ...]:
    from vllm.tasks import POOLING_TASKS

    return tuple(POOLING_TASKS)


def _compilers(config: Any) -> Compile:
    from worker.engines.vllm.grammar_compilers import prepare

    return prepare(config)
