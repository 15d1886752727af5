"""`direct`: the engine behind an HTTP server in the manner of vLLM 0.32's `vllm serve`.

`direct_app.py` has the application: the Prometheus middleware, CORS, the scaling check, the routes
that are tried before, the exception handlers. `direct_server.py` has the chat completion, with the
pydantic classes of `chat_request.py`, `chat_messages.py` and `chat_models.py`. The server is
uvicorn with uvloop and httptools, the garbage collector's heap is frozen, as there.

CPU beside vLLM's own application, `OpenAIServingChat` and classes, both with an engine and a
renderer that cost nothing, called as uvicorn calls them (one core of 2.5 GHz, CPython 3.11):

                                                        vLLM 0.32    direct
    a chunk built and dumped                              10.1 us    10.3 us
    a chunk from the engine's output to `send`            15.3 us    13.6 us
    a request's JSON parsed and validated                 21.3 us    21.3 us
    a whole request of one token                           350 us     262 us
    the start and the end of a stream                      460 us     363 us

What is left out, all in `direct`'s favour: `SamplingParams` and the checks before it (most of the
difference above), the access log (on by default, one line a request), the chat template and the
tokenizer, the hop to the engine's process and back over ZeroMQ, detokenization, the engine's own
metrics. One thing is not: a stream that falls behind the engine gets a chunk for each token, where
vLLM puts those that wait into one.

`python -m load_tests.systems.direct PORT`; the engine's settings come from the environment.
"""

from __future__ import annotations

import sys

from load_tests.systems.system import System


class Direct(System):
    """What a client of vLLM itself sees: everything else is compared with it."""

    name = "direct"

    def start(self) -> None:
        self.ports = [self.start_server("load_tests.systems.direct")]


def _main() -> None:
    try:
        from load_tests.systems.uvicorn_server import serve
        from load_tests.systems.vllm_server.chat import create_app
    except ModuleNotFoundError as error:
        sys.exit(f"`direct` does what vLLM does only with {error.name}: it is installed with vLLM")
    serve(create_app())


if __name__ == "__main__":
    _main()
