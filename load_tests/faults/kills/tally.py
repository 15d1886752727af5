"""Sums up what the clients of a run observed. Pure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from load_tests.faults.kills.kill_schedule import KILLED, STOPPED, KillKind
from load_tests.faults.kills.ledger_check import Logged
from load_tests.faults.kills.pauses import Hit, Silence, pauses
from load_tests.oracle.differences import differences
from load_tests.oracle.observation import Observation
from load_tests.oracle.record_check import record_errors, terminal_entries
from load_tests.oracle.stored_job import StoredJob
from shared.job.log import tokens_in

_MAX_EXAMPLES = 40


@dataclass(slots=True)
class Tally:
    """Counts over all requests of a run."""

    kills: Counter[str] = field(default_factory=Counter)
    jobs: Counter[str] = field(default_factory=Counter)
    """Accepted requests by class."""
    ends: Counter[str] = field(default_factory=Counter)
    """Accepted requests by how they ended."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests that were not accepted, by code."""
    tokens: int = 0
    """Tokens that the clients got."""
    tokens_lost: int = 0
    tokens_repeated: int = 0
    streams: int = 0
    streams_cut: int = 0
    """Streams whose client did not get the whole answer, for whatever reason."""
    failed: int = 0
    """Other requests whose client got no whole answer."""
    wrong: int = 0
    """Answers that differ in anything else, and records or logs with errors."""
    terminal_entries: Counter[int] = field(default_factory=Counter)
    """Jobs by the number of terminal entries in their log."""
    hit: int = 0
    """Requests that a kill of their worker's process hit."""
    logged_tokens: int = 0
    """Tokens in the logs of all jobs."""
    generated_tokens: int = 0
    """Tokens that all engines generated; 0 if it is not known (vLLM)."""
    waited_s: float = 0.0
    """How long the kills waited for workers that load their model."""
    pauses: dict[KillKind, list[float]] = field(
        default_factory=lambda: {kind: [] for kind in KillKind}
    )
    """Pause of each stream that was hit."""
    single_pauses: list[float] = field(default_factory=list)
    """Those after kills that end a process, of streams that no other kill hit in the pause."""
    kills_of: Mapping[str, list[Hit]] = field(default_factory=dict)
    """The kills of each process."""
    leftovers: dict[str, int] = field(default_factory=dict)
    logged: dict[str, Logged] = field(default_factory=dict)
    """What the logs of the jobs have, for the ledger."""
    ledger_errors: int = 0
    """What is wrong with the ledger."""
    ended_by_themselves: list[str] = field(default_factory=list)
    """Processes that ended without a kill."""
    examples: list[str] = field(default_factory=list)
    """What is wrong, in words."""

    def add(self, seen: Observation, stored: StoredJob | None, hits: Iterable[Hit] = ()) -> None:
        """Add one request, with what Redis holds of it and the kills that hit it."""
        if not seen.accepted:
            self.refused[seen.code] += 1
            return
        self.jobs[seen.request.class_name] += 1
        self.ends[_end_of(seen)] += 1
        errors = self._add_answer(seen)
        errors += record_errors(seen, stored) if seen.job_id else ["its client got no id"]
        if stored is not None:
            self.terminal_entries[terminal_entries(stored)] += 1
            self.logged_tokens += sum(tokens_in(entry.journal) for entry in stored.entries)
            if stored.job.state.terminal:
                self.logged[stored.job.id] = Logged.of(stored)
        self.wrong += bool(errors)
        self._add_pauses(seen, list(self._kills_of_workers(stored)), list(hits))
        if errors and len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(_describe(seen, stored, errors))

    def add_ledger(self, errors: Sequence[str]) -> None:
        """Add what is wrong with the ledger."""
        self.ledger_errors += len(errors)
        self.examples += errors[: _MAX_EXAMPLES - len(self.examples)]

    @property
    def decoded_again(self) -> int:
        """Tokens that engines generated and no log holds, because their worker was lost."""
        return self.generated_tokens - self.logged_tokens

    def killed_pauses(self) -> list[float]:
        """Return the pauses after kills that end a process."""
        return [pause for kind in KILLED for pause in self.pauses[kind]]

    def _add_answer(self, seen: Observation) -> list[str]:
        found = differences(seen)
        self.tokens_lost += found.tokens_lost
        self.tokens_repeated += found.tokens_repeated
        self.streams += seen.streams
        errors = found.in_words()
        if seen.complete:
            self.tokens += seen.expected.completion_tokens
        else:
            self.streams_cut += seen.streams
            self.failed += not seen.streams
            errors.append(f"no whole answer: {_end_of(seen)}")
        return errors

    def _kills_of_workers(self, stored: StoredJob | None) -> Iterator[tuple[Hit, float]]:
        """Yield the kills of workers that held a job, and when they lost it."""
        to_monotonic = time.monotonic() - time.time()
        for attempt in stored.job.attempts if stored else ():
            began, ended = attempt.started_at + to_monotonic, (attempt.ended_at or 0) + to_monotonic
            for kind, at in self.kills_of.get(attempt.worker, ()):
                if began <= at <= ended:
                    yield (kind, at), ended

    def _add_pauses(
        self, seen: Observation, of_workers: list[tuple[Hit, float]], hits: list[Hit]
    ) -> None:
        hits += [hit for hit, _ in of_workers]
        self.hit += bool(hits)
        if not seen.streams:
            return
        stopped = [Silence(at, ended) for (kind, at), ended in of_workers if kind in STOPPED]
        for pause in pauses(hits, seen.at, stopped):
            self.pauses[pause.kind].append(pause.length_s)
            if pause.kind in KILLED and pause.kills == 1:
                self.single_pauses.append(pause.length_s)


def _end_of(seen: Observation) -> str:
    return f"{seen.end} {seen.code}" if seen.code else str(seen.end)


def _describe(seen: Observation, stored: StoredJob | None, errors: list[str]) -> str:
    request = seen.request
    head = f"{seen.job_id or request.tag} ({request.class_name}, {request.mode})"
    attempts = stored.job.attempts if stored else ()
    tried = ", ".join(f"{attempt.worker} {attempt.outcome}" for attempt in attempts)
    return f"{head}: {'; '.join(errors)}" + f"; attempts: {tried}" * (len(attempts) > 1)
