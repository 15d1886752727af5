"""A whole answer, added up from its deltas."""

from __future__ import annotations

from vllm.outputs import RequestOutput


class GatheredAnswer:
    """The deltas of one call whose answer is not streamed."""

    def __init__(self) -> None:
        self.output: RequestOutput | None = None

    def add(self, output: RequestOutput) -> None:
        """Add a delta."""
        if self.output is None:
            self.output = output
        else:
            self.output.add(output, aggregate=True)
            self.output.metrics = output.metrics

    def add_unfinished(self, output: RequestOutput) -> str | None:
        """An `Interceptor`: takes what does not end the answer, and makes no chunk of it."""
        if output.finished:
            return None
        self.add(output)
        return ""
