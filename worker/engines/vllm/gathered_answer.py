"""A whole answer, added up from its deltas, within what one request may ask for."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from vllm.outputs import RequestOutput

from worker.engines.interface import Journal
from worker.engines.vllm.request_limits import RequestLimits


class GatheredAnswer:
    """The deltas of one call whose answer is not streamed."""

    def __init__(
        self,
        journal: Journal,
        limits: RequestLimits | None,
        counts: WeakKeyDictionary[Journal, int],
    ) -> None:
        """`counts`: log probabilities so far, of all calls of a job together."""
        self.output: RequestOutput | None = None
        self._journal = journal
        self._limits = limits
        self._counts = counts

    def add(self, output: RequestOutput) -> None:
        """Add a delta."""
        if self._limits is not None:
            self._counts[self._journal] = _count_logprobs(output) + self._n_logprobs()
        if self.output is None:
            self.output = output
        else:
            self.output.add(output, aggregate=True)
            self.output.metrics = output.metrics

    def add_unfinished(self, output: RequestOutput) -> str | None:
        """An `Interceptor`: takes what does not end the answer, and makes no chunk of it."""
        if output.finished or (self._limits and self._limits.exceeds(self._n_logprobs())):
            return None
        self.add(output)
        return ""

    def check(self) -> None:
        """Raises what `RequestLimits.check_answer` raises."""
        if self._limits is not None:
            self._limits.check_answer(self._n_logprobs())

    def _n_logprobs(self) -> int:
        return self._counts.get(self._journal, 0)


def _count_logprobs(output: RequestOutput) -> int:
    return sum(len(position) for part in output.outputs for position in part.logprobs or ())
