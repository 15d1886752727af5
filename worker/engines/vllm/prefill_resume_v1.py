"""Prefill resume in vLLM's model runner V1: output tokens and random state of a continued request.

Model runner V2 needs no patch: it gets prompt and past together with the prompt's length for every
new request, and its random numbers depend on the seed and the position only.
"""

from __future__ import annotations

from typing import Any

from worker.engines.vllm.resume_args import prefilled


def patch() -> None:
    """Give continued requests their past when the runner gets them."""
    from vllm.v1.worker.gpu_input_batch import CachedRequestState
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    post_init, update_states = CachedRequestState.__post_init__, GPUModelRunner._update_states  # noqa: SLF001
    runner: Any = None

    def update(self: Any, scheduler_output: Any) -> Any:
        nonlocal runner
        runner = self
        return update_states(self, scheduler_output)

    def init(self: Any) -> None:
        post_init(self)
        past = prefilled(self.sampling_params)
        if past:
            self.output_token_ids = list(past["tokens"])
        if self.generator is None:
            return
        if self.generator.device.type == "cpu":
            self.generator = _cpu_generator(self, runner)
        elif past:
            _draw(self.generator, runner, len(past["tokens"]))

    CachedRequestState.__post_init__ = init
    GPUModelRunner._update_states = update  # noqa: SLF001


def _draw(generator: Any, runner: Any, times: int) -> None:
    """Advance a generator as sampling `times` tokens does, with the sampler itself."""
    import torch

    if not times:
        return
    logits = torch.zeros(1, runner.input_batch.vocab_size, device=generator.device)

    def once() -> None:
        runner.sampler.topk_topp_sampler(logits, {0: generator}, None, None)

    if generator.device.type == "cpu":
        for _ in range(times):
            once()
    else:  # its state is a counter, to which each draw adds the same number
        before = generator.get_offset()
        once()
        generator.set_offset(before + (generator.get_offset() - before) * times)


def _cpu_generator(state: Any, runner: Any) -> Any:
    """A seeded request's generator on a CPU, which can be set back by one draw.

    vLLM sets generators back after each part of a prefill but the last. torch's own raises then on
    a CPU, which ends vLLM's engine.
    """
    import torch

    class Generator(torch.Generator):  # type: ignore[misc]
        def get_offset(self) -> int:
            return 0

        def set_offset(self, offset: int) -> None:
            self.manual_seed(state.sampling_params.seed)
            _draw(self, runner, len(state.output_token_ids))

    generator = Generator()
    generator.set_offset(0)
    return generator
