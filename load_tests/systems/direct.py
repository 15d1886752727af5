"""`direct`: the simulated engine behind an HTTP server that works as vLLM 0.32's `vllm serve`.

`vllm_server/app.py` has the application: Prometheus middleware, CORS, the scaling check, the routes
that are tried first, exception handlers. `vllm_server/chat.py` has the chat completion, with the
pydantic classes of `request.py`, `messages.py` and `models.py`. The server is uvicorn with uvloop
and httptools, and the garbage collector's heap is frozen, as in vLLM.

CPU time compared with vLLM's own application, `OpenAIServingChat` and classes, both with an engine
and a renderer that cost nothing, called as uvicorn calls them (one core of 2.5 GHz, CPython 3.11):

                                                        vLLM 0.32    direct
    a chunk built and dumped                              10.1 us    10.3 us
    a chunk from the engine's output to `send`            15.3 us    13.6 us
    a request's JSON parsed and validated                 21.3 us    21.3 us
    a whole request of one token                           350 us     262 us
    the start and the end of a stream                      460 us     363 us

Left out, which makes `direct` cheaper than vLLM: `SamplingParams` and the checks before it (most of
the difference above), the access log (on by default, one line a request), the chat template and the
tokenizer, the hop to the engine's process and back over ZeroMQ, detokenization, the engine's own
metrics. One difference makes `direct` more expensive: a stream that falls behind the
engine gets a chunk for each token, where vLLM merges waiting tokens into one chunk.

`python -m load_tests.systems.direct PORT`; the engine's settings are read from the environment.
"""

from __future__ import annotations

import sys

from load_tests.systems.system import System


class Direct(System):
    """vLLM's own server, with which all other systems are compared."""

    name = "direct"

    def start(self) -> None:
        """Start the server."""
        self.ports = [self.start_server("load_tests.systems.direct")]


def _main() -> None:
    try:
        from load_tests.systems.uvicorn_server import serve
        from load_tests.systems.vllm_server.chat import create_app
    except ModuleNotFoundError as error:
        sys.exit(f"`direct` needs {error.name}, which is installed with vLLM")
    serve(create_app())


if __name__ == "__main__":
    _main()
