"""A fleet of a program's own: requests without a server, from Python."""

from __future__ import annotations

import contextlib
import resource
import shutil
import tempfile
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path
from typing import Any, Self

from gateway.offline.answers import Answers
from gateway.offline.fleet_process import FleetError, FleetProcess, held, plan

_CHECK_S = 1.0
_WINDOW = 256
"""Requests in flight for each worker: vLLM runs about so many at once."""


class LocalFleet:
    """Redis, a gateway and workers on this machine, during a `with` block.

        with LocalFleet(model="Qwen/Qwen3-0.6B", workers=2) as fleet:
            for answer in fleet.map("/v1/completions", bodies):
                print(answer["choices"][0]["text"])

    The arguments are the options of `flotilla up`; all other settings are variables
    (`FLOTILLA_...`) or flotilla.yaml, as there. Other clients can call the gateway too: `url`, with
    `api_key`. All processes end with the block, and with this process, however it ends.
    """

    def __init__(
        self,
        model: str | None = None,
        workers: int | None = None,
        *,
        engine: str | None = None,
        engine_args: str | None = None,
        folder: str | Path | None = None,
    ) -> None:
        """`folder`: where data and logs stay; without it they are deleted at the end.

        `workers`: 1 by default. Raises SettingsError (of shared.platform.settings).
        """
        if workers is not None and workers < 1:
            raise ValueError("a fleet has at least one worker")
        self._plan = plan(workers, model=model, engine=engine, engine_args=engine_args)
        self._folder = None if folder is None else Path(folder)
        self._at_end = contextlib.ExitStack()
        self._process: FleetProcess | None = None
        self._answers: Answers | None = None
        self.url = ""
        """Of the gateway, in the block."""
        self.api_key = ""
        self.model = ""
        """The name of the model; empty if flotilla.yaml lists several pools."""

    def __enter__(self) -> Self:
        """Start it; returns once a worker is ready.

        Raises FleetError, with the last lines of the log, if a process can't start, or another
        process uses the folder.
        """
        with contextlib.ExitStack() as at_end:
            folder = self._folder or at_end.enter_context(_temporary_folder())
            at_end.enter_context(held(folder))
            process = FleetProcess(folder, self._plan)
            at_end.callback(process.stop)
            self.url, self.model = process.wait_until_serving()
            self.api_key = process.api_key
            self._answers = Answers(self.url, process.headers)
            at_end.callback(self._answers.close)
            self._process = process
            self._at_end = at_end.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """End all of its processes; requests in flight have no answer."""
        self._at_end.__exit__(*error)  # type: ignore[arg-type]

    def check(self) -> None:
        """Raises FleetError if it has ended."""
        if self._process is None:
            raise FleetError("the fleet has not been started: use it in a `with` block")
        self._process.check()

    def map(
        self, endpoint: str, bodies: Iterable[Mapping[str, Any]], *, window: int | None = None
    ) -> Generator[dict[str, Any], None, None]:
        """The answers to requests, in their order: the JSON of each response.

        A request that is refused or fails has an answer as well, in OpenAI's shape: `{"error":
        {"message", "type", "param", "code"}}`; so test `answer.get("error")`. It stops no other. A
        worker that is lost is no error: others continue what it ran, and it is started again.

        `bodies` may be endless: it is read while answers are, `window` requests ahead of them (256
        for each worker by default). A body without `model` gets the fleet's. Streams and answers
        that a gateway would store are refused, as in a batch. Closing the generator cancels the
        requests that are in flight. Raises FleetError if the fleet has ended.
        """
        if window is not None and window < 1:
            raise ValueError("the window has at least one request")
        self.check()
        return self._map(endpoint, bodies, window or self._window())

    def _map(
        self, endpoint: str, bodies: Iterable[Mapping[str, Any]], window: int
    ) -> Generator[dict[str, Any], None, None]:
        assert self._answers is not None
        waiting: deque[Future[dict[str, Any]]] = deque()
        try:
            for body in bodies:
                fields = dict(body)
                if self.model:
                    fields.setdefault("model", self.model)
                self.check()
                waiting.append(self._answers.start(endpoint, fields))
                while waiting and (len(waiting) >= window or waiting[0].done()):
                    yield self._result(waiting.popleft())
            while waiting:
                yield self._result(waiting.popleft())
        finally:
            for each in waiting:
                each.cancel()

    def _result(self, answer: Future[dict[str, Any]]) -> dict[str, Any]:
        while not wait({answer}, timeout=_CHECK_S).done:
            self.check()
        try:
            return answer.result()
        except CancelledError:
            raise FleetError("the fleet was ended while requests were in flight") from None

    def _window(self) -> int:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # each request has a connection
        return max(1, min(_WINDOW * self._plan.workers, files // 2))


@contextlib.contextmanager
def _temporary_folder() -> Generator[Path, None, None]:
    """A folder that is deleted at the end, unless the fleet has failed: then its logs tell why."""
    folder = Path(tempfile.mkdtemp(prefix="flotilla-local-"))
    try:
        yield folder
    except FleetError:
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)
