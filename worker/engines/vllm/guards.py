"""What stands between a hostile request and vLLM: installed once, when the engine starts."""

from __future__ import annotations

import logging
from typing import Any

from shared.platform.settings import Settings
from worker.engines.vllm.grammar_check import Compile, GrammarChecker
from worker.engines.vllm.trial_process import Limits

log = logging.getLogger("flotilla.engine")


class Guards:
    """The guards of one engine."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._grammars = GrammarChecker(
            Limits(settings.grammar_timeout_s, settings.grammar_memory_bytes)
        )

    async def start(self, config: Any) -> None:
        """Fork the process that tries grammars, before the engine is. `config`: vLLM's."""
        from torch import cuda

        if config.model_config.runner_type == "pooling" or config.model_config.skip_tokenizer_init:
            return  # it has no grammars
        if cuda.is_initialized():  # a process that uses CUDA must not be forked
            log.warning("this process uses CUDA already: grammars are not tried before vLLM's use")
        else:
            await self._grammars.start(lambda: _compilers(config))

    def install(self, app: Any, engine: Any, config: Any) -> Any:
        """Add them to vLLM's application, and return what has to be its engine.

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
        )
        return JournalledEngine(engine, limits, config.scheduler_config.max_num_seqs)

    def close(self) -> None:
        """End the process that tries grammars."""
        self._grammars.close()


def _compilers(config: Any) -> Compile:
    from worker.engines.vllm.grammar_compilers import prepare

    return prepare(config)
