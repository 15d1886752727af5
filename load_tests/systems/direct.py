"""`direct`: vLLM's own application, as `vllm serve` has it, over the simulated engine.

Application, middleware, validation, chat template, tokenizer and serving classes are vLLM's.
Only the engine's client is replaced: its outputs are the simulated engine's tokens, as `AsyncLLM`
returns them. The server is uvicorn with uvloop and httptools, and the garbage collector's heap is
frozen, as in vLLM.

Left out, which makes `direct` cheaper than vLLM: the access log (on by default, one line a
request), the hop to the engine's process and back over ZeroMQ, detokenization, the engine's own
metrics. One difference makes `direct` more expensive: a stream that falls behind the engine gets a
chunk for each token, where vLLM merges waiting tokens into one chunk.

`python -m load_tests.systems.direct PORT`; the engine's settings are read from the environment.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from load_tests.systems.engine import MODEL
from load_tests.systems.system import System
from shared.platform.settings import load_settings
from worker.demo import MODEL_DIR
from worker.engines.simulated.api import TextRequest
from worker.engines.simulated.engine import SimulatedEngine
from worker.engines.simulated.simulated_settings import SimulatedSettings


class Direct(System):
    """vLLM's own server, with which all other systems are compared."""

    name = "direct"

    def start(self) -> None:
        """Start the server."""
        self.ports = [self.start_server("load_tests.systems.direct")]


class EngineClient:
    """What vLLM's application needs of its engine. Only `generate` does anything."""

    errored, is_stopped, is_running = False, False, True

    def __init__(self, config: Any) -> None:
        from vllm.renderers import renderer_from_config
        from vllm.v1.engine.input_processor import InputProcessor

        self.vllm_config, self.model_config = config, config.model_config
        self.renderer = renderer_from_config(config)
        self.input_processor = InputProcessor(config, self.renderer)
        self.engine = SimulatedEngine(load_settings(SimulatedSettings))

    async def check_health(self) -> None:
        """It is always well."""

    def check_admission(self, n: int = 1) -> None:
        """Everything is admitted."""

    async def is_tracing_enabled(self) -> bool:
        """Never."""
        return False

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **_: Any
    ) -> AsyncGenerator[Any, None]:
        """One output for each token; for an answer that is not streamed, one with all tokens."""
        from vllm.outputs import CompletionOutput, RequestOutput
        from vllm.sampling_params import RequestOutputKind

        tokens: list[int] = prompt["prompt_token_ids"]
        stream = sampling_params.output_kind is RequestOutputKind.DELTA
        most = sampling_params.max_tokens
        request = TextRequest(prompt=str(tokens), max_tokens=most, ignore_eos=True, stream=stream)
        generation = self.engine.generate(request)
        text, made = "", 0
        try:
            while deltas := await generation.next_deltas():
                for delta in deltas:
                    text, made = text + delta.text, made + 1
                    if not stream and delta is not deltas[-1]:
                        continue
                    output = CompletionOutput(
                        index=0,
                        text=delta.text if stream else text,
                        token_ids=delta.token_ids if stream else [0] * made,
                        cumulative_logprob=None,
                        logprobs=None,
                        finish_reason=delta.finish_reason,
                        stop_reason=delta.stop_reason,
                    )
                    finished = delta.finish_reason is not None
                    yield RequestOutput(request_id, None, tokens, None, [output], finished)
        finally:
            self.engine.abort(generation)


async def _make_app() -> tuple[Any, EngineClient]:
    """VLLM's application with the arguments of `vllm serve`, and its engine."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options = ["--model", str(MODEL_DIR), "--served-model-name", MODEL, "--dtype", "float32"]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(options)
    engine = EngineClient(AsyncEngineArgs.from_cli_args(args).create_engine_config())
    app = build_app(args, ("generate",), engine.model_config)
    await init_app_state(engine, app.state, args, ("generate",))
    app.state.server = SimpleNamespace(should_exit=False)
    return app, engine


def _main() -> None:
    try:
        import vllm  # noqa: F401 - fails before anything is started
    except ModuleNotFoundError as error:
        sys.exit(f"`direct` needs {error.name}, which is installed with vLLM")
    import uvicorn

    app, engine = asyncio.run(_make_app())
    lifespan = app.router.lifespan_context

    @asynccontextmanager
    async def with_engine(app: Any) -> AsyncGenerator[None, None]:
        async with lifespan(app):
            await engine.engine.start()
            gc.collect()
            gc.freeze()
            yield
            engine.engine.close()

    app.router.lifespan_context = with_engine
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
        backlog=4096,
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    _main()
