"""The span of a request that a gateway answers, from its headers to the end of its answer."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from time import time

from shared.job.trace_context import SpanRef, new_trace, parse
from shared.platform import tracing

_ID = re.compile(r"\b(?:job|resp|conv)_[0-9a-f]+|\b[0-9]+-[0-9]+\b")


class RequestSpan:
    """A request that is traced. `parent`: its client's span, if it has sent one."""

    __slots__ = ("_attributes", "_first_output_at", "_joined", "began_at", "parent", "ref")

    def __init__(self, ref: SpanRef, parent: SpanRef | None) -> None:
        self.ref = ref
        self.parent = parent
        self.began_at = time()
        self._first_output_at = 0.0
        self._joined = False
        self._attributes: dict[str, tracing.Value] = {}

    def submit(self, endpoint: str, model: str, pool: str, lane: str) -> str:
        """The request submits a job; returns the job's `traceparent`."""
        self._attributes = tracing.job_attributes(endpoint, model, pool, lane)
        return self.ref.traceparent

    def join(self, traceparent: str) -> None:
        """The request takes up the answer of a job that an earlier one has submitted.

        It belongs to the job's trace, unless its client has one of its own.
        """
        self._joined = True
        job = parse(traceparent)
        if self.parent is None and job is not None:
            self.parent, self.ref = job, job.child()

    def output_sent(self) -> None:
        """Output is being sent; the first call counts."""
        self._first_output_at = self._first_output_at or time()

    def end(self, method: str, path: str, status: int, error: str, ids: tracing.Attributes) -> None:
        """Write it. A request that only reads is in no trace. `error`: a code, empty if none."""
        if method != "POST" and not self._joined:
            return
        name = method if status == 404 else f"{method} {_ID.sub('{id}', path)}"
        if status < 400:
            error = ""
        attributes = tracing.http_attributes(method, path, status, error)
        attributes |= {**self._attributes, **ids}
        ended_at = time()
        tracing.write(
            name, self.ref, self.parent, (self.began_at, ended_at), attributes, error, server=True
        )
        if self._first_output_at:
            delivery = (self._first_output_at, ended_at)
            tracing.write("delivery", self.ref.child(), self.ref, delivery)


_REQUEST: ContextVar[RequestSpan | None] = ContextVar("_REQUEST", default=None)


def begin(headers: Iterable[tuple[bytes, bytes]], is_operator: Callable[[], bool]) -> None:
    """Begin the span of the request that the calling task answers, if it is to be traced.

    A share of the requests is. Of those with a `traceparent`, none that its client does not trace,
    and of an operator all that it does.
    """
    if not tracing.is_on():
        return
    sent = next((value for name, value in headers if name == b"traceparent"), b"")
    parent = parse(sent.decode("latin-1")) if sent else None
    span = None
    chosen = random.random() < tracing.sample_ratio()
    if parent is not None:
        if parent.sampled and (chosen or is_operator()):
            span = RequestSpan(parent.child(), parent)
    elif chosen:
        span = RequestSpan(new_trace(), None)
    _REQUEST.set(span)


def current() -> RequestSpan | None:
    """The span of the request that the calling task answers; None: it is not traced."""
    return _REQUEST.get()
