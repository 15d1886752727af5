"""Prefill resume: a request enters vLLM's engine as one that the engine had preempted.

The fast way to continue an answer. The engine computes prompt and past in one prefill, and yet the
past stays *output*: for penalties, min_tokens, grammars, seeds, stop strings, logprobs and
max_tokens it is as if this engine had generated it.

vLLM has no public interface for that, so `install` patches classes of vLLM, in each of its
processes: this one and those that it forks, and through the hook `vllm.general_plugins` those that
vLLM spawns. The patches do nothing for a request that does not carry the key PREFILL
(resume_args.py). With other releases forced_replay.py is used.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

from shared.platform import settings as environment
from worker.engines.vllm import prefill_resume_v1
from worker.engines.vllm.resume_args import prefilled

log = logging.getLogger("flotilla.engine")

TESTED = ("0.32.",)
"""Releases of vLLM with which every class of requests was continued."""
SWITCH = "ENGINE_PREFILL_RESUME"
"""Variable: with `off`, vLLM's processes do not install the patches."""

_PATCHED = "_patched_for_prefill_resume"
# As in LogprobsProcessor: so many tokens before a token can be parts of one UTF-8 character.
_CONTEXT = 4


def usable() -> bool:
    """Whether this release of vLLM can be patched."""
    import vllm

    return str(vllm.__version__).startswith(TESTED)


def install() -> bool:
    """Patch vLLM in this process; False where its release can't be patched."""
    if not usable():
        log.warning("answers are continued by forced replay: prefills need vLLM %s", TESTED)
        environment.set_engine_variable(SWITCH, "off")
        return False
    from vllm.v1.engine.output_processor import OutputProcessor

    if not hasattr(OutputProcessor, _PATCHED):
        setattr(OutputProcessor, _PATCHED, True)
        _patch_front()
        _patch_scheduler()
        _patch_grammars()
        prefill_resume_v1.patch()
    return True


def install_in_engine() -> None:
    """Do the same in a process that vLLM has spawned (an entry point in pyproject.toml)."""
    if environment.engine_variable(SWITCH) != "off":
        install()


def _patch_front() -> None:
    """The process of AsyncLLM: detokenizer, logprobs, stop strings."""
    from vllm.v1.engine.output_processor import OutputProcessor

    add_request = OutputProcessor.add_request

    def add(
        self: Any,
        request: Any,
        prompt: Any,
        parent_req: Any = None,
        request_index: int = 0,
        queue: Any = None,
    ) -> None:
        add_request(self, request, prompt, parent_req, request_index, queue)
        if past := prefilled(request.sampling_params):
            _replay(self, request, past)

    OutputProcessor.add_request = add


def _replay(processor: Any, request: Any, past: Any) -> None:
    """Bring the request's state to the end of its past, and put one output into its queue.

    That output is of the past's last token, has the text of the whole past, and the finish reason
    if the answer ended there: an attempt can end after the last token and before it wrote so.
    """
    from vllm.logprobs import Logprob
    from vllm.v1.engine import EngineCoreOutput

    tokens = past["tokens"]
    *earlier, last = tokens
    state = processor.request_states[request.request_id]
    reason, stop_reason = _end(request, past["max_model_len"])
    for token in earlier:  # one by one, as they came: stop strings are looked for after each
        state.detokenizer.update([token], False)
    logprobs = state.logprobs_processor
    if logprobs.logprobs is not None:
        logprobs.cumulative_logprob = past["logprob"]
        for token in tokens[-_CONTEXT:]:
            logprobs.logprobs.append({token: Logprob(0.0)})
    interval, state.stream_interval = state.stream_interval, 1
    tracing, processor.tracing_enabled = processor.tracing_enabled, False
    try:
        processor.process_outputs(
            [
                EngineCoreOutput(
                    request_id=request.request_id,
                    new_token_ids=[last],
                    finish_reason=reason,
                    stop_reason=stop_reason,
                )
            ]
        )
    finally:
        processor.tracing_enabled = tracing
    if request.request_id in processor.request_states:
        state.stream_interval, state.sent_tokens_offset = interval, len(tokens)
        state.is_prefilling = True  # the first new token is yet to come
    else:
        request.abort_immediately = True


def _end(request: Any, max_model_len: int) -> tuple[Any, Any]:
    """Finish and stop reason if the engine ends the request after the past's last token."""
    from vllm.v1.core.sched.utils import check_stop
    from vllm.v1.request import Request

    as_scheduled = Request.from_engine_core_request(request, None)
    if not check_stop(as_scheduled, max_model_len):
        return None, None
    return as_scheduled.get_finished_reason(), as_scheduled.stop_reason


def _patch_scheduler() -> None:
    """The process of EngineCore: the scheduler's view of a request."""
    from vllm.v1.request import Request

    make = Request.from_engine_core_request.__func__

    def from_engine_core_request(cls: Any, request: Any, block_hasher: Any) -> Any:
        scheduled = make(cls, request, block_hasher)
        if past := prefilled(scheduled.sampling_params):
            scheduled.append_output_token_ids(list(past["tokens"]))
            # vLLM asserts of a first prefill that no more is cached than the prompt.
            scheduled.prefill_stats = None
        return scheduled

    Request.from_engine_core_request = classmethod(from_engine_core_request)


def _patch_grammars() -> None:
    """The process of EngineCore: structured output."""
    from vllm.v1.structured_output import StructuredOutputManager

    create_grammar = StructuredOutputManager._create_grammar  # noqa: SLF001

    def create(self: Any, request: Any) -> Any:
        grammar = create_grammar(self, request)
        if past := prefilled(request.sampling_params):
            # This runs in a thread, and the grammar is the request's only once it has returned.
            stand_in, own = copy.copy(request), request.structured_output_request
            stand_in.structured_output_request = ready = copy.copy(own)
            ready.grammar = grammar
            if not self.accept_tokens(stand_in, list(past["tokens"])):
                raise ValueError("The grammar does not accept what the answer has so far.")
            own.reasoning_ended, own.reasoner = ready.reasoning_ended, ready.reasoner
        return grammar

    StructuredOutputManager._create_grammar = create  # noqa: SLF001
