"""The processes of the model (model.py): workers with an engine that counts, gateways, clients."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from gateway.core.reader import Reader, ReadMode
from shared.job.errors import StreamReset
from shared.job.log import Entry, EventName, Position, frames
from shared.job.result import JobResult
from shared.job.rules import ShareRules
from shared.store.queue import Control, HeldJob, Watched, parse_control
from tests.store.model_parts import (
    Broken,
    ModelQueue,
    Token,
    ensure,
    is_answer,
    next_token,
    tokens_of,
)
from worker.core.claim import Charges, Claims, HomeShards, Room
from worker.core.output import Output
from worker.core.publish import ShardPublisher
from worker.core.resume import Continuation, read_past
from worker.engines.interface import Capacity, Load

if TYPE_CHECKING:
    from tests.store.model import World

POOL = "pool"


class Engine:
    """What a worker asks of its engine."""

    dead = False
    capacity = Capacity(max_num_seqs=2, max_model_len=1000)

    def __init__(self, worker: ModelWorker) -> None:
        self._worker = worker

    def load(self) -> Load:
        """The sequences in it."""
        runs = self._worker.runs.values()
        return Load(sum(run.output.reached_engine for run in runs), 0.0)


class Run:
    """What the engine does for a job, whose body is `<tokens> <what a continuation does>`."""

    def __init__(self, output: Output, publisher: ShardPublisher) -> None:
        self.output = output
        self.publisher = publisher
        wanted, how = output.job.body.decode().split()
        self.wanted = int(wanted)
        self.restarts = how == "restarts"
        self.salt = random.getrandbits(30)
        self.tokens: list[Token] = []
        self.is_ready = output.job.number == 1  # else it has to read what there is
        self.is_reading = False

    def was_not_read(self) -> None:
        """Redis could not be asked."""
        self.is_reading = False

    def was_read(self, entries: Sequence[Entry] | None) -> None:
        """Go on behind what earlier attempts have made, or begin anew."""
        self.is_ready = True
        if entries is None:
            self.output.restart("log_lost")
            return
        past = Continuation()
        past.add(entries)
        made = past.pasts[0].deltas if 0 in past.pasts else ()
        if self.restarts and (made or past.chunks):
            self.output.restart("worker_lost")
        elif made:
            self.tokens = [Token.read(delta.text) for delta in made]
            self.output.take_over(past.decoder, past.prompt_tokens, past.completion_tokens)

    def step(self) -> None:
        """A step of the engine."""
        output = self.output
        if not self.is_ready or output.result or output.discarded:
            return
        if len(self.tokens) < self.wanted:
            if not output.reached_engine:
                if output.taken_over:
                    output.reached_engine = True
                else:
                    output.prompt(0, 5)
            before = self.tokens[-1].check if self.tokens else 0
            token = next_token(len(self.tokens), before, self.salt)
            self.tokens.append(token)
            output.delta(0, 0, (token.place,), token.text)
            if output.job.stream:
                output.chunk(token.chunk)
        if len(self.tokens) == self.wanted and random.random() < 0.5:
            output.result = JobResult(
                error_code="",
                status=200,
                content_type="text/event-stream" if output.job.stream else "application/json",
                body=b"" if output.job.stream else b" ".join(t.chunk for t in self.tokens) or b"{}",
                prompt_tokens=output.prompt_tokens,
                completion_tokens=output.completion_tokens,
            )
            self.publisher.notify(output)


class ModelWorker:
    """The claims and the publisher of a worker with an engine that counts."""

    publisher_class = ShardPublisher
    claims_class = Claims
    output_class = Output

    def __init__(self, world: World, name: str) -> None:
        self.name = self.worker_id = name
        self.pool = POOL
        self.world = world
        self.queue = ModelQueue(world.prefix)
        self.runs: dict[str, Run] = {}
        self.charges = Charges(ShareRules())
        self.room = Room(Engine(self), 0.9, self.charges)  # type: ignore[arg-type]
        jobs: Any = self  # what these ask of Jobs
        self.homes = HomeShards(jobs)
        self.publisher = self.publisher_class(jobs, 0)
        self.claims = self.claims_class(jobs, self.publisher)
        self.is_claiming = self.is_sending = False

    def idle_room(self, shard: int) -> tuple[str, int]:
        """See Jobs."""
        return self.pool, self.room.free()

    def start(self, job: HeldJob) -> None:
        """See Jobs."""
        output = self.output_class(job, self.publisher)  # type: ignore[arg-type]
        self.publisher.add(output)
        self.room.started(output)
        self.runs[job.id] = Run(output, self.publisher)

    def lost(self, output: Output, state: str) -> None:
        """See Jobs."""
        run = self.runs.get(output.id)
        if run is not None and run.output is output:
            del self.runs[output.id]

    def disconnected(self) -> None:
        """Its connection is lost; it will notice."""
        self.queue.connections.losses += 1
        self.is_claiming = self.is_sending = False

    def step(self) -> None:
        """A step of the engine."""
        for job_id, run in list(self.runs.items()):
            if self.publisher.outputs.get(job_id) is run.output:
                run.step()
            else:
                del self.runs[job_id]

    def claim(self) -> None:
        """Ask for jobs, unless a claim is in flight."""
        if not self.is_claiming:
            self.is_claiming = True
            self.world.send(self.name, self.claims.claim(), self._claimed)

    def _claimed(self, _: bool) -> None:
        self.is_claiming = False

    def send(self) -> None:
        """Send what there is, unless a call is in flight."""
        if not self.is_sending:
            self.is_sending = True
            self.world.send(self.name, self.publisher.send(), self._sent)

    def _sent(self, _: None) -> None:
        self.is_sending = False
        self.step_ended()

    def step_ended(self) -> None:
        """Forget runs whose ends were acknowledged."""
        for job_id, run in list(self.runs.items()):
            if self.publisher.outputs.get(job_id) is not run.output:
                del self.runs[job_id]

    def read_past(self) -> None:
        """Read what earlier attempts have made, of each job that needs it."""
        for run in self.runs.values():
            if not (run.is_ready or run.is_reading):
                run.is_reading = True
                reading = read_past(self.queue, run.output.job)
                self.world.send(self.name, reading, run.was_read, run.was_not_read)

    def give_back(self) -> None:
        """Hand a job over."""
        if not self.runs:
            return
        output = self.world.random.choice(list(self.runs.values())).output
        output.discarded = True
        event: Literal["handed_over", "requeued"] = "handed_over"
        if self.world.random.random() < 0.5:
            event = "requeued"
        self.world.send(
            self.name,
            self.queue.give_back([output.job], event, "drained"),
            lambda _: self._given_back(output),
            lambda: self._given_back(output),
        )

    def _given_back(self, output: Output) -> None:
        self.publisher.remove(output)
        self.lost(output, "")

    def on_message(self, message: bytes) -> None:
        """A message on its control channel."""
        kind, arguments = parse_control(message)
        if kind is Control.CLAIM:
            self.claims.wake(int(arguments[0]))
        elif kind is Control.LOST:
            for job, generation in zip(arguments[::2], arguments[1::2], strict=True):
                self.publisher.taken_away(job.decode(), int(generation))


class ModelRelay:
    """A gateway's readers, and which of them wait to be watched or looked at."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.world = world
        self.queue = ModelQueue(world.prefix)
        self.readers: list[ModelClient] = []
        self.now = 0.0
        self.gaps: dict[float, int] = {}
        self.unwatched: list[Reader] = []

    # What a reader asks of it.

    def watch(self, reader: Reader, after_s: float = 0.0) -> None:
        """See Relay."""
        if reader not in self.unwatched:
            self.unwatched.append(reader)

    def count_gap(self) -> None:
        """See Relay."""

    def report_malformed(self, job_id: str, error: Exception) -> None:
        """See Relay."""
        raise Broken(f"{job_id}: malformed: {error!r}")

    def schedule_wakeup(self, at: float) -> None:
        """See Relay."""

    # What the model has it do.

    def on_message(self, message: bytes) -> None:
        """Hand frames to the readers of their jobs."""
        for frame in frames(message):
            for client in self.readers:
                if client.job.encode() == frame[0]:
                    client.reader.on_frame(frame)
                    client.come()

    def disconnected(self) -> None:
        """The subscription was lost, and is there again."""
        self.queue.connections.losses += 1
        self.unwatched.clear()
        for client in self.readers:
            if client.job not in self.world.unconfirmed:
                client.reader.resync()

    def watch_again(self) -> None:
        """Watch the jobs of readers that ask for it."""
        waiting, self.unwatched = self.unwatched, []
        for reader in waiting:
            if reader.is_unwatched:
                follow = reader.with_events
                self.world.send(
                    self.name,
                    self.queue.watch(reader.job_id, self.name, follow=follow),
                    partial(self._was_watched, reader),
                )

    def _was_watched(self, reader: Reader, watched: Watched | None) -> None:
        reader.on_watched(watched)
        for client in self.readers:
            if client.reader is reader:
                client.come()

    def look(self) -> None:
        """Ask for the positions of readers without frames."""
        now = self.world.monotonic()
        quiet = [
            client.reader
            for client in self.readers
            if client.job not in self.world.unconfirmed and client.reader.is_to_be_looked_at(now)
        ]
        if quiet:
            self.world.send(
                self.name,
                self.queue.positions(0, [reader.job_id for reader in quiet]),
                partial(self._were_looked_at, quiet),
            )

    def _were_looked_at(self, readers: list[Reader], found: Sequence[Position | None]) -> None:
        for reader, position in zip(readers, found, strict=True):
            reader.on_position(position)


class ModelClient:
    """A client, and its reader."""

    def __init__(
        self, relay: ModelRelay, job: str, mode: ReadMode, *, number: int = 0,
        tokens: Sequence[Token] = (), is_new: bool = False,
    ) -> None:  # fmt: skip
        self.relay = relay
        self.job = job
        self.mode = mode
        self.tokens = list(tokens)
        self.told: str | None = None
        """How it ended for the client: a terminal state, or `stream_reset`."""
        self.may_come_back = True
        self.reader = relay.world.reader_class(
            relay, job, mode, after=number, is_new=is_new,  # type: ignore[arg-type]
            with_events=mode is ReadMode.DELTAS,
        )  # fmt: skip
        self.reader._page_entries = random.choice((2, 3, 32))
        self.slowness = random.choice((0.0, 0.0, 0.7))
        self.number = number
        relay.readers.append(self)

    @property
    def is_sure(self) -> bool:
        """The reader knows the generation of what the client has."""
        return self.reader.number >= self.number

    def read(self) -> None:
        """Take what waits, and read a page if the reader is behind."""
        self.take()
        if self.reader.is_behind:
            self.relay.world.send(self.relay.name, self.reader.read_page(), lambda _: self.come())

    def come(self) -> None:
        """Something has come; a slow client takes it later."""
        if random.random() >= self.slowness:
            self.take()

    def take(self) -> None:
        """What the client gets: it is the beginning of an answer."""
        for event in self.reader.take():
            if event.event == EventName.RESTARTED:
                self.tokens = []
            if self.mode is ReadMode.CHUNKS:
                self.tokens += tokens_of(event.output)
            elif self.mode is ReadMode.DELTAS:
                self.tokens += [Token.read(each.text) for each in event.output if len(each) > 3]
            self.number = event.number
            if event.last:
                self.told = event.event
        if self.reader.failure is not None:
            ensure(isinstance(self.reader.failure, StreamReset), repr(self.reader.failure))
            self.told = "stream_reset"
        ensure(is_answer(self.tokens), f"{self.job}: a client has {[t[:2] for t in self.tokens]}")
        ensure(
            self.told != "stream_reset"
            or self.relay.world.loses_data
            or self.job in self.relay.world.removed,
            f"{self.job}: reset without a loss: {self.reader.failure}",
        )
        if self.mode is not ReadMode.END and not self.told and self.may_come_back:
            self.relay.world.history.append((self.job, self.mode, self.number, list(self.tokens)))
