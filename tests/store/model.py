"""A world in which the real scripts, publishers, claims and readers meet random schedules: calls
that are lost, delayed and reordered, workers that stop, end and come back, cancels, deadlines,
drains, clients that reattach anywhere, frames that are lost in silence, logs, records and indexes
that are damaged, a clock that goes back, and a Redis that comes back with older data.

No event loop runs. A coroutine of the product is stepped until it makes a call (`Pending`); the
model has Redis carry the call out when it likes, and steps the coroutine with the reply, or with
the error of a lost connection.
"""

from __future__ import annotations

import math
import random
import socket
from binascii import crc32
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast
from unittest import mock

import hiredis
import msgpack

from gateway.core.reader import Reader, ReadMode
from shared.job.errors import StreamReset
from shared.job.fair_shares import ShareRules
from shared.job.job import NewJob
from shared.job.log import (
    ENDS,
    Entry,
    EventName,
    Position,
    frames,
    read_entries,
    read_journal,
)
from shared.job.result import JobResult
from shared.job.states import JobEvent
from shared.store import queue as queue_module
from shared.store.interface import StoreUnavailable
from shared.store.queue import Control, HeldJob, Queue, Watched, parse_control
from shared.store.redis import keys
from worker.core import output as output_module
from worker.core import publish as publish_module
from worker.core.claim import Charges, Claims, Room
from worker.core.membership import Membership
from worker.core.output import Output
from worker.core.publish import ShardPublisher
from worker.core.resume import read_past
from worker.core.sent_output import ContinuationReader
from worker.engines.interface import Capacity, Load

GATEWAYS = ("gw-0", "gw-1", "gw-2")
POOL = "pool"
CLOCK = "local function read_clock() return tonumber(redis.call('GET', 'clock')) end"
_STEPS = 400
_MOST_JOBS = 4
_MOST_WORKERS = 6
"""Over all of a schedule."""


class Broken(Exception):
    """An invariant does not hold."""


def ensure(condition: object, what: str) -> None:
    """Raise Broken unless the condition holds."""
    if not condition:
        raise Broken(what)


# --- tokens ---


class Token(NamedTuple):
    """Depends on all tokens before and on the attempt, as sampling does: what is spliced shows."""

    place: int
    salt: int
    check: int

    @property
    def text(self) -> str:
        """As the engine makes it."""
        return f"{self.place} {self.salt} {self.check}"

    @property
    def chunk(self) -> bytes:
        """As the client gets it."""
        return b'data: {"text": "%b"}\n\n' % self.text.encode()

    @classmethod
    def read(cls, text: str) -> Token:
        """The opposite of `text`."""
        return cls(*map(int, text.split()))


def next_token(index: int, before: int, salt: int) -> Token:
    """The token behind one with the check `before`."""
    return Token(index, salt, crc32(b"%d %d %d" % (index, before, salt)))


def is_answer(tokens: Iterable[Token]) -> bool:
    """Whether these are the first tokens of one answer: nothing is missing, repeated or spliced."""
    before = 0
    for index, token in enumerate(tokens):
        if token != next_token(index, before, token.salt):
            return False
        before = token.check
    return True


def tokens_of(chunks: bytes) -> list[Token]:
    """The tokens in the chunks of a stream."""
    return [Token.read(part.split('"')[3]) for part in chunks.decode().split("\n\n") if part]


# --- Redis ---


class Wire:
    """A connection to Redis, one call at a time: faster than a client."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._reader = hiredis.Reader()

    def __call__(self, *command: Any) -> Any:
        """The reply. Raises error replies."""
        return self.all([command])[0]

    def all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies to several commands."""
        self._socket.sendall(b"".join(hiredis.pack_command(tuple(each)) for each in commands))
        replies = [self._next() for _ in commands]
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise reply
        return replies

    def _next(self) -> Any:
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(1 << 20))
        return reply

    def messages(self) -> list[tuple[str, bytes]]:
        """Channel and message of all that was published before; for a subscriber."""
        found = [self("PING", "here")]
        while found[-1] != [b"pong", b"here"]:
            found.append(self._next())
        return [(each[1].decode(), each[2]) for each in found[:-1] if each[0] == b"message"]

    def close(self) -> None:
        """Close it."""
        self._socket.close()


class Pending:
    """A call that was sent. Awaiting it gives the call to the model."""

    def __init__(self, *command: Any) -> None:
        self.command = command

    def __await__(self) -> Generator[Pending, Any, Any]:
        return (yield self)


class Connections:
    """What a process has in place of the servers, their scripts and its connections."""

    shards = 1
    groups = (range(1),)

    def of(self, shard: int) -> None:
        """See Servers."""

    def __init__(self, prefix: str) -> None:
        self.losses = 0
        self.connection = self
        self._prefix = prefix

    def send(self, name: str, shard: int, arguments: Iterable[Any]) -> Any:
        """See Scripts."""
        return Pending("FCALL", f"{self._prefix}_{name}", 1, keys.base(shard), *arguments)

    start = send

    async def run(self, name: str, shard: int, arguments: Iterable[Any]) -> Any:
        """See Scripts."""
        return await self.send(name, shard, arguments)

    async def command(self, *words: Any) -> Any:
        """See Scripts."""
        return await Pending(*words)


class ModelQueue(Queue):
    """The queue of a process."""

    def __init__(self, prefix: str) -> None:
        self.connections = Connections(prefix)
        with mock.patch.object(queue_module, "Scripts", return_value=self.connections):
            super().__init__(cast(Any, self.connections))


async def _in_order(*works: Any) -> list[Any]:
    """In place of `run_together`, which needs an event loop."""
    return [await work for work in works]


@dataclass
class Call:
    """A call of a process on its way, or its reply."""

    owner: str
    epoch: int
    coroutine: Coroutine[Any, Any, Any]
    done: Callable[[Any], None]
    failed: Callable[[], Any]
    command: Sequence[Any] = ()
    is_executed: bool = False
    reply: Any = None


# --- processes ---


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
        reader = ContinuationReader()
        reader.add(entries)
        past = reader.continuation
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
                event=JobEvent.COMPLETE,
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
        self.name = name
        self.world = world
        self.queue = ModelQueue(world.prefix)
        self.runs: dict[str, Run] = {}
        charges = Charges(ShareRules())
        self.room = Room(Engine(self), 0.9, charges)  # type: ignore[arg-type]
        self.publisher = self.publisher_class(self.queue, 0, name, self._lost)
        self.claims = self.claims_class(
            Membership(self.queue, POOL, name), 0, self.room, charges, self.publisher, self._start
        )
        self.is_claiming = self.is_sending = False

    def _start(self, job: HeldJob) -> None:
        output = self.output_class(job, self.publisher.notify)
        self.publisher.add(output)
        self.room.started(output)
        self.runs[job.id] = Run(output, self.publisher)

    def _lost(self, output: Output, state: str) -> None:
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
        self._lost(output, "")

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
                    client.take()

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
                client.take()

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
        self.number = number
        relay.readers.append(self)

    @property
    def is_sure(self) -> bool:
        """The reader knows the generation of what the client has."""
        return self.reader.number >= self.number

    def read(self) -> None:
        """Read a page, if the reader is behind."""
        if self.reader.is_behind:
            self.relay.world.send(self.relay.name, self.reader.read_page(), lambda _: self.take())

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


class Holder(NamedTuple):
    """Who has a job by its record."""

    state: str
    worker: str
    generation: int
    deadline: float

    @classmethod
    def read(cls, values: Sequence[bytes | None]) -> Holder:
        """From `state`, `lease` and `deadline_us`."""
        state, lease, deadline = values
        worker, generation, *_ = msgpack.unpackb(lease) if lease else ("", 0)
        until = float(deadline) if deadline else math.inf
        return cls((state or b"").decode(), worker, int(generation), until)


# --- the world ---


class World:
    """One schedule. `hides`: a layer below the workers connects again by itself."""

    def __init__(
        self, redis: Wire, subscriber: Wire, prefix: str, seed: int, *,
        worker: type[ModelWorker] = ModelWorker, reader: type[Reader] = Reader,
        loses_frames: bool = True, looks: bool = True, hides: bool = False, damages: float = 0.2,
    ) -> None:  # fmt: skip
        self.redis, self.subscriber, self.prefix = redis, subscriber, prefix
        self.worker_class, self.reader_class = worker, reader
        self.loses_frames, self.looks, self.hides = loses_frames, looks, hides
        self.damages = damages  # how often a log is damaged
        self.random = random.Random(seed)
        random.seed(seed)
        self.loses_data = seed % 2 == 1
        self.clock = 10**15  # of Redis, in microseconds
        self.elapsed = 0  # of the processes
        self.calls: list[Call] = []
        self.epochs: Counter[str] = Counter()
        self.queues: dict[str, list[bytes]] = defaultdict(list)  # messages on their way
        self.jobs: dict[str, int] = {}  # tokens wanted
        self.kinds: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.copy: list[Any] | None = None
        self.removed: set[str] = set()
        self.damaged: set[str] = set()
        self.damaged_before: set[str] = set()  # their logs, before they have ended
        self.damaged_later: set[str] = set()
        self.stopped: set[str] = set()
        self.unsubscribed: set[str] = set()  # gateways that get no frames
        self.unconfirmed: set[str] = set()
        self.history: list[tuple[str, ReadMode, int, list[Token]]] = []
        self.workers: dict[str, ModelWorker] = {}
        self.n_workers = 0
        redis("FLUSHALL")
        subscriber("UNSUBSCRIBE")
        self.sleep(0)
        self.relays = {name: ModelRelay(self, name) for name in GATEWAYS}
        self.upkeep = ModelQueue(prefix)
        for name in GATEWAYS:
            subscriber("SUBSCRIBE", f"flotilla:tokens:{name}")
        for _ in range(3):
            self.new_worker()

    @property
    def clients(self) -> list[ModelClient]:
        """Of all gateways."""
        return [client for relay in self.relays.values() for client in relay.readers]

    def sleep(self, us: int) -> None:
        """Let time pass; Redis' clock may go back."""
        self.clock += us
        self.elapsed += max(0, us)
        self.redis("SET", "clock", self.clock)

    # --- calls ---

    def send(
        self,
        owner: str,
        coroutine: Any,
        done: Callable[[Any], Any],
        failed: Callable[[], Any] = lambda: None,
    ) -> None:
        """Begin what makes calls. `done` gets what it returns."""
        if isinstance(coroutine, Pending):
            coroutine = _awaiting(coroutine)
        self._step(Call(owner, self.epochs[owner], coroutine, done, failed), None)

    def _step(self, call: Call, reply: Any) -> None:
        try:
            pending = call.coroutine.send(reply)
        except StopIteration as stop:
            call.done(stop.value)
        except StoreUnavailable:  # there is no connection
            call.failed()
        else:
            self.calls.append(replace(call, command=pending.command, is_executed=False, reply=None))

    def advance(self) -> None:
        """Carry out a call that is on its way, or hand over a reply."""
        reachable = [c for c in self.calls if not (c.is_executed and c.owner in self.stopped)]
        if not reachable:
            return
        call = self.random.choice(reachable)
        if not call.is_executed:
            call.is_executed, call.reply = True, self.execute(call.command)
            if self.random.random() < 0.3:
                return
        self.calls.remove(call)
        if call.epoch == self.epochs[call.owner]:
            self._step(call, call.reply)

    def disconnect(self, owner: str, *, arrives: float = 0.5) -> None:
        """What is on its way is lost, or carried out at some time."""
        own = [call for call in self.calls if call.owner == owner]
        if self.hides and owner in self.workers:
            for call in own:
                call.is_executed = False  # to be repeated
            return
        live = [call for call in own if call.epoch == self.epochs[owner]]
        self.epochs[owner] += 1
        self.queues[owner].clear()
        for call in own:
            if call.is_executed or self.random.random() >= arrives:
                self.calls.remove(call)
        process = self.workers.get(owner) or self.relays.get(owner)
        if process is not None:
            process.disconnected()
        for call in live:
            try:
                call.coroutine.throw(StoreUnavailable("lost"))
            except StoreUnavailable:
                call.failed()
            except StopIteration as stop:
                call.done(stop.value)
            else:
                raise AssertionError("it goes on over another connection")

    # --- Redis ---

    def execute(self, command: Sequence[Any]) -> Any:
        """Have Redis carry out a call, and look at what it did."""
        us = self.random.randrange(1, 2000)
        self.clock, self.elapsed = self.clock + us, self.elapsed + us
        read = [("HMGET", key("job", job), "state", "lease", "deadline_us") for job in self.jobs]
        replies = self.redis.all([("SET", "clock", self.clock), *read, command, *read])
        count = len(read)
        before = dict(zip(self.jobs, map(Holder.read, replies[1 : count + 1]), strict=True))
        after = dict(zip(self.jobs, map(Holder.read, replies[count + 2 :]), strict=True))
        reply = replies[count + 1]
        for channel, message in self.subscriber.messages():
            owner = channel.rpartition(":")[2]
            if owner not in self.unsubscribed:
                self.queues[owner].append(message)
        name = str(command[1]).rpartition("_")[2] if command[0] == "FCALL" else ""
        if name == "emit":
            self.check_emit(command, reply, before)
        elif name == "claim":
            for job, *_ in (reply or (0,))[1:]:
                ensure(
                    before[job.decode()].deadline >= self.clock,
                    f"{job} was handed out, but has expired",
                )
        elif name == "tick":
            for lease_end in self.redis("ZREVRANGE", key("workers"), 0, 0, "WITHSCORES")[1::2]:
                ensure(float(lease_end) <= self.clock + 2 * 10**6, "a lease lies ahead")
        for job, now in after.items():
            was = self.states.get(job, "")
            ensure(was not in ENDS or now.state in (was, ""), f"{job}: {was} became {now.state}")
            self.states[job] = now.state
        return reply

    def check_emit(self, command: Sequence[Any], reply: Any, before: dict[str, Holder]) -> None:
        """What was taken came from the holder."""
        worker = command[4]
        emitted = Queue.parse_emit(reply)
        for job, entry in written_by(command):
            if job not in emitted.refused and job not in emitted.short:
                held = before[job]
                ensure(
                    not held.state or (held.worker, str(held.generation)) == (worker, entry),
                    f"{job}: {entry} of {worker} was taken, but {held} has the job",
                )

    def take_copy(self) -> None:
        """A copy of what Redis has, as a replica may have."""
        names = self.redis("KEYS", "*")
        read = [("DUMP", name) for name in names] + [("PTTL", name) for name in names]
        values = self.redis.all(read)
        ttls = values[len(names) :]
        self.copy = [
            ("RESTORE", name, max(ttl, 0), value)
            for name, value, ttl in zip(names, values, ttls, strict=False)
        ]

    def lose_data(self) -> None:
        """Redis comes back as it was when the copy was taken."""
        if self.copy is None or not self.loses_data:
            return
        self.redis.all([("FLUSHALL",), *self.copy])
        self.copy, self.states = None, {}
        self.damaged_before.clear()
        self.history.clear()  # a client that comes back knows a number, and no generation
        for relay in self.relays.values():
            relay.readers = [each for each in relay.readers if each.is_sure]
            for client in relay.readers:
                client.may_come_back = False
        self.sleep(self.random.randrange(-50, 3000000))
        for owner in (*GATEWAYS, *self.workers, "upkeep"):
            self.disconnect(owner, arrives=0.0)

    # --- what may happen ---

    def new_worker(self) -> None:
        """One more worker."""
        name = f"w{self.n_workers}"
        self.n_workers += 1
        self.workers[name] = self.worker_class(self, name)
        self.subscriber("SUBSCRIBE", f"flotilla:control:{name}")

    def end_worker(self, name: str) -> None:
        """It is killed."""
        self.disconnect(name)
        self.subscriber("UNSUBSCRIBE", f"flotilla:control:{name}")
        del self.workers[name]
        self.new_worker()

    def submit(self) -> None:
        """A client's request."""
        job, relay = job_id(len(self.jobs)), self.relays[self.random.choice(GATEWAYS)]
        self.jobs[job] = wanted = self.random.randrange(0, 8)
        self.kinds[job] = kind = self.random.choice(("stream", "stream", "plain", "restarts"))
        new = NewJob(
            id=job,
            tenant=self.random.choice(("a", "b")),
            pool=POOL,
            lane="default",
            model="model",
            endpoint="/v1/completions",
            body=f"{wanted} {kind}".encode(),
            stream=kind == "stream",
            ttl_s=600.0,
            gateway=relay.name,
            deadline_s=self.random.choice((None, None, None, 2.0)),
        )
        self.unconfirmed.add(job)
        mode = ReadMode.CHUNKS if new.stream else ReadMode.END
        ModelClient(relay, job, mode, is_new=True)

        def send() -> None:
            self.send(relay.name, relay.queue.submit(0, [new], 100), confirmed, send_again)

        def send_again() -> None:
            again.append(True)
            send()

        def confirmed(_: Any) -> None:
            self.unconfirmed.discard(job)
            for client in self.clients if again else ():
                if client.job == job:
                    client.reader.resync()

        again: list[bool] = []
        send()

    def reattach(self) -> None:
        """A client comes back anywhere with what it had at some time, or comes for the first."""
        if self.history and self.random.random() < 0.8:
            job, mode, number, tokens = self.random.choice(self.history)
        elif known := [job for job in self.jobs if job not in self.unconfirmed]:
            job, number, tokens = self.random.choice(known), 0, []
            mode = ReadMode.CHUNKS if self.kinds[job] == "stream" else ReadMode.DELTAS
        else:
            return
        relay = self.relays[self.random.choice(GATEWAYS)]
        ModelClient(relay, job, mode, number=number, tokens=tokens)

    def work(self, name: str) -> None:
        """Something that a worker does."""
        worker, what = self.workers[name], self.random.randrange(40)
        if what < 3:
            self.send(name, worker.queue.heartbeat(0, name), _nothing)
        elif what < 8:
            worker.claim()
        elif what < 12:
            worker.read_past()
        elif what < 14:
            worker.give_back()
        elif what < 25:
            worker.step()
        else:
            worker.send()

    def damage(self) -> None:
        """A log alone is lost, or entries of one that runs: only a person or eviction does that."""
        job = self.random.choice(list(self.jobs))
        last = self.redis("XREVRANGE", key("log", job), "+", "-", "COUNT", 1)
        if last and self.loses_data:
            how = [
                ("DEL", key("log", job)),
                ("XDEL", key("log", job), last[0][0]),
                ("XTRIM", key("log", job), "MAXLEN", 1),
            ]
            state = (self.redis("HGET", key("job", job), "state") or b"").decode()
            self.redis(*(self.random.choice(how) if state == "in_progress" else how[0]))
            self.damaged.add(job)
            (self.damaged_later if state in ENDS else self.damaged_before).add(job)

    def damage_index(self) -> None:
        """A job is in a line or a list no more, or in a line still: a script failed halfway."""
        job = self.random.choice(list(self.jobs))
        read = ("HMGET", key("job", job), "state", "lease", "deadline_us")
        held, entry = Holder.read(self.redis(*read)), self.redis("HGET", key("job", job), "entry")
        tenants = [name.decode() for name in self.redis("KEYS", key("line", "*"))]
        line = f"{POOL}:default"
        if held.state == "in_progress":
            how: list[tuple[Any, ...]] = [
                ("ZREM", key("workers"), held.worker),
                ("XACK", key("queue", POOL), "workers", entry or "0-1"),
            ]
        elif held.state == "queued":
            how = [("ZREM", key("first", POOL), job), ("ZREM", key("turns", line), "a", "b")]
            how += [("ZREM", name, job) for name in tenants]
        else:
            return
        if self.random.random() < 0.2:
            tenant = self.random.choice("ab")
            how = [
                ("ZADD", key("line", f"{line}:{tenant}"), 0, job),
                ("ZADD", key("turns", line), 0, tenant),
            ]
        self.redis.all(how if self.random.random() < 0.5 else [self.random.choice(how)])

    def evict(self) -> None:
        """A record alone is lost."""
        job = self.random.choice(list(self.jobs))
        if self.loses_data:
            self.redis("DEL", key("job", job))
            self.damaged.add(job)
            self.states[job] = ""

    def remove(self) -> None:
        """The time of an ended job is over."""
        for job in self.jobs:
            if self.states.get(job) in ENDS and job not in self.removed:
                self.redis("DEL", key("job", job), key("log", job))
                self.removed.add(job)
                return

    def listen(self, owner: str) -> None:
        """Hand over a message."""
        if self.queues[owner]:
            process = self.workers.get(owner) or self.relays[owner]
            process.on_message(self.queues[owner].pop(0))

    def happen(self) -> None:
        """One thing."""
        choice, what = self.random.choice, self.random.randrange(220)
        name, gateway = choice(list(self.workers)), choice(GATEWAYS)
        relay = self.relays[gateway]
        if what < 70:
            self.advance()
        elif what < 130 and name not in self.stopped:
            self.work(name)
        elif what < 146:
            self.listen(gateway)
        elif what < 150 and name not in self.stopped:
            self.listen(name)
        elif what < 165:
            relay.watch_again()
            if relay.readers:
                choice(relay.readers).read()
        elif what < 170 and len(self.jobs) < _MOST_JOBS:
            self.submit()
        elif what < 173:
            self.reattach()
        elif what < 178:
            self.send("upkeep", self.upkeep.tick(0), _nothing)
        elif what < 182:
            self.sleep(choice([10**5, 10**6, 25 * 10**5]))
        elif what < 185:
            self.stopped ^= {name}
        elif what < 188:
            self.disconnect(choice((name, gateway)))
        elif what == 188 and self.n_workers < _MOST_WORKERS:
            self.end_worker(name)
        elif what == 189 and self.jobs:
            tenant_and_job = choice(("a", "b")), choice(list(self.jobs))
            self.send("upkeep", self.upkeep.cancel(*tenant_and_job), _nothing)
        elif what < 194 and (self.copy is None or self.random.random() < 0.3):
            self.take_copy()
        elif what < 196:
            self.lose_data()
        elif what == 196 and self.random.random() < 0.2:
            self.remove()
        elif what == 197 and self.jobs and self.random.random() < self.damages:
            self.damage()
        elif what == 198 and self.random.random() < 0.2:
            self.evict()
        elif what == 199 and self.random.random() < 0.5:
            self.damage_index()
        elif what < 203 and self.loses_frames:
            self.unsubscribed ^= {gateway}
            self.queues[gateway].clear()
        elif what < 207 and self.looks:
            relay.look()
        elif what < 209:
            self.workers[name].room.paused = "" if self.workers[name].room.paused else "paused"
        elif what == 209 and not self.loses_data and self.random.random() < 0.3:
            self.sleep(-60 * 10**6)

    def play(self) -> None:
        """Let things happen, then let all end without faults, and look at the result."""
        with (
            mock.patch.object(publish_module, "time", self),
            mock.patch.object(output_module, "KEPT_S", 0.0),
            mock.patch.object(queue_module, "run_together", _in_order),
        ):
            self.submit()
            for _ in range(_STEPS):
                self.happen()
            self.stopped.clear()
            self.unsubscribed.clear()
            next(iter(self.workers.values())).room.paused = ""  # the others may stay so
            for _ in range(60):
                if self.is_over():
                    break
                self.finish_round()
            self.check_end()

    def monotonic(self) -> float:
        """The clock of processes, in seconds."""
        return self.elapsed / 1e6

    def is_over(self) -> bool:
        """Nothing is left to happen."""
        told = all(client.told for client in self.clients)
        return told and not self.calls and all(not s or s in ENDS for s in self.states.values())

    def finish_round(self) -> None:
        """All that happens without faults."""
        self.send("upkeep", self.upkeep.tick(0), _nothing)
        for name, worker in self.workers.items():
            self.send(name, worker.queue.heartbeat(0, name), _nothing)
            worker.claim()
            worker.read_past()
            worker.step()
            worker.send()
        for relay in self.relays.values():
            relay.watch_again()
            if self.looks:
                relay.look()
            for client in relay.readers:
                client.read()
        while self.calls:
            self.advance()
            self.listen(self.random.choice((*GATEWAYS, *self.workers)))
        self.sleep(300000)

    def check_end(self) -> None:
        """What must hold when all is over."""
        for job, wanted in self.jobs.items():
            read = self.redis("HMGET", key("job", job), "state", "error_code")
            state, code = ((word or b"").decode() for word in read)
            may_be_gone = self.loses_data or job in self.removed
            ensure(state in ENDS or (not state and may_be_gone), f"{job} was forgotten: {state}")
            ensure(code != "log_lost" or job in self.damaged, f"{job}: log_lost without a loss")
            if state == "completed" and job in self.damaged_before - self.damaged_later:
                self.check_numbers(job)
            if state and code != "log_lost" and job not in self.damaged:
                self.check_log(job, state, wanted)
        for client in self.clients:
            ensure(client.told, f"a client of {client.job} waits for ever")
            if client.told == "completed" and client.mode is not ReadMode.END:
                ensure(len(client.tokens) == self.jobs[client.job], f"{client.job}: not all tokens")

    def check_numbers(self, job: str) -> list[Entry]:
        """A log that lacks nothing; returns it."""
        log = read_entries(self.redis("XRANGE", key("log", job), "-", "+"))
        numbers = [entry.position.number for entry in log]
        ensure(numbers == list(range(1, len(log) + 1)), f"{job}: numbers {numbers}")
        return log

    def check_log(self, job: str, state: str, wanted: int) -> None:
        """The log of a job that has ended."""
        log = self.check_numbers(job)
        ends = [entry.event for entry in log if entry.event in ENDS]
        ensure(ends == [log[-1].event] == [state], f"{job}: {state}, log {log}")
        tokens: list[Token] = []
        for entry in log:
            tokens = [] if entry.event == EventName.RESTARTED else tokens
            records = read_journal(entry.journal, entry.items)
            tokens += [Token.read(each.text) for each in records if len(each) > 3]
        whole = state != "completed" or len(tokens) == wanted
        ensure(is_answer(tokens) and whole, f"{job}: tokens {tokens}")


async def _awaiting(pending: Pending) -> Any:
    return await pending


def _nothing(_: Any) -> None:
    pass


def job_id(number: int) -> str:
    """The id of a job in shard 0."""
    return f"job_000{number:024x}"


def key(word: str, name: str = "") -> str:
    """A key of shard 0."""
    return f"{keys.base(0)}{word}:{name}" if name else f"{keys.base(0)}{word}"


def written_by(command: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Job and generation of each entry of a call of `emit`."""
    _, restarts, entries, ends = msgpack.unpackb(command[6], raw=True)
    written = [*zip(restarts[::3], restarts[1::3], strict=True)]
    written += [*zip(entries[::3], entries[1::3], strict=True)]
    for job, entry_id in written + [tuple(end[:2]) for end in ends]:
        yield job.decode(), entry_id.decode().partition("-")[0]
