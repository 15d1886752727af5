"""A whole answer, added up from its deltas."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from vllm.outputs import RequestOutput

from worker.engines.interface import Journal


class TooManyLogprobs(ValueError):
    """A prompt or an answer has too many. VLLM answers a ValueError with 400."""


class LogprobCounts:
    """How many log probabilities the answers that are not streamed have so far.

    VLLM makes an object of each, all at the end, and all other requests wait meanwhile.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_job: WeakKeyDictionary[Journal, int] = WeakKeyDictionary()

    def add(self, journal: Journal, output: RequestOutput) -> bool:
        """Count those of an output; whether they are too many with all calls of its job."""
        new = sum(len(position) for part in output.outputs for position in part.logprobs or ())
        if new:
            self._of_job[journal] = new = new + self._of_job.get(journal, 0)
        return new > self._most

    def refusal(self) -> TooManyLogprobs:
        """The error of an answer with too many."""
        return TooManyLogprobs(
            f"The answer has more than {self._most} log probabilities, the most in one that is "
            "not streamed. Set `stream`, or ask for less."
        )


class GatheredAnswer:
    """The deltas of one call whose answer is not streamed."""

    def __init__(self, journal: Journal, counts: LogprobCounts) -> None:
        self.output: RequestOutput | None = None
        self._journal = journal
        self._counts = counts
        self._too_many = False

    def add(self, output: RequestOutput) -> None:
        """Add a delta. Raises TooManyLogprobs."""
        self._add(output)
        if self._too_many:
            raise self._counts.refusal()

    def add_unfinished(self, output: RequestOutput) -> str | None:
        """An `Interceptor`: takes what does not end the answer, and makes no chunk of it."""
        if output.finished or self._too_many:
            return None
        self._add(output)
        return ""

    def _add(self, output: RequestOutput) -> None:
        self._too_many = self._counts.add(self._journal, output) or self._too_many
        if self.output is None:
            self.output = output
        else:
            self.output.add(output, aggregate=True)
            self.output.metrics = output.metrics
