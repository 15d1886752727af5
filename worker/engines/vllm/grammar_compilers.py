"""VLLM's own compilers of structured outputs, in the process of trial_process.py."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Any

from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.structured_output.backend_guidance import GuidanceBackend
from vllm.v1.structured_output.backend_types import StructuredOutputBackend
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
from vllm.v1.structured_output.request import get_structured_output_key

from worker.engines.vllm.grammar_check import Compile

log = logging.getLogger("flotilla.grammar")

_TRIED_TOKENS = 16
_MAX_TOKEN_S = 0.25
"""CPU time of the engine's process for one token's mask: all sequences wait for it in each step."""
_MAX_CHECK_S = 0.5
"""CPU time of the worker's event loop: vLLM repeats the check there for every request."""


def prepare(config: Any) -> Compile:
    """Load the tokenizer; the result tries one grammar. `config`: vLLM's."""
    tokenizer = cached_tokenizer_from_config(model_config=config.model_config)
    vocab_size = config.model_config.get_vocab_size()
    backends: dict[str, StructuredOutputBackend] = {}
    for name, kind in (("xgrammar", XgrammarBackend), ("guidance", GuidanceBackend)):
        try:
            backends[name] = kind(config, tokenizer=tokenizer, vocab_size=vocab_size)
        except Exception as error:  # vLLM can't use it for this tokenizer either
            log.info("no grammars with %s: %s", name, error)

    def check(params: SamplingParams) -> None:
        params.verify(config.model_config, None, config.structured_outputs_config, tokenizer)

    with suppress(Exception):  # loads what all children need
        check(SamplingParams(structured_outputs=StructuredOutputsParams(json_object=True)))

    def attempt(grammar: dict[str, Any], engine_backend: str) -> tuple[str, str]:
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**grammar))
        structured = params.structured_outputs
        assert structured is not None
        began = time.process_time()
        try:
            check(params)
        except Exception as error:
            return str(error) or type(error).__name__, ""
        if time.process_time() - began > _MAX_CHECK_S:
            return "The grammar can't be used: it is too large.", ""
        own = str(structured._backend)  # noqa: SLF001
        backend = backends.get(engine_backend or own)
        if backend is None:  # another library of vLLM's, which an operator has chosen
            return "", own
        try:
            slowest = _first_tokens(backend, structured)
        except Exception as error:
            return f"The grammar can't be compiled: {error or type(error).__name__}", ""
        if slowest > _MAX_TOKEN_S:
            return "The grammar can't be used: each token would take too long.", ""
        return "", own

    return attempt


def _first_tokens(backend: Any, structured: StructuredOutputsParams) -> float:
    """Compile the grammar and follow it for some tokens; the longest time that one took."""
    compiled = backend.compile_grammar(*get_structured_output_key(structured))
    mask = backend.allocate_token_bitmask(1)
    slowest = 0.0
    for step in range(_TRIED_TOKENS):
        began = time.process_time()
        if compiled.is_terminated():
            break
        compiled.fill_bitmask(mask, 0)
        token = _allowed_token(mask[0].tolist(), step)
        if token is None:
            raise ValueError("it allows no token")
        if not compiled.accept_tokens("grammar", [token]):
            break
        slowest = max(slowest, time.process_time() - began)
    return slowest


def _allowed_token(words: list[int], step: int) -> int | None:
    """One of the tokens whose bits are set, another one in each step."""
    allowed = [index for index, word in enumerate(words) if word]
    if not allowed:
        return None
    index = allowed[(step * 7919) % len(allowed)]
    bits = [bit for bit in range(32) if words[index] >> bit & 1]
    return index * 32 + bits[(step * 31) % len(bits)]
