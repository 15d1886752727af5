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
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from unittest import mock

import msgpack

from gateway.core import reader as reader_module
from gateway.core.reader import Reader, ReadMode
from shared.job.job import NewJob
from shared.job.log import ENDS, Entry, EventName, read_entries, read_journal
from shared.store import keys
from shared.store import queue as queue_module
from shared.store.errors import StoreUnavailable
from shared.store.queue import Queue
from tests.store.model_parts import ModelQueue, Pending, Token, Wire, ensure, in_order, is_answer
from tests.store.model_processes import POOL, ModelClient, ModelRelay, ModelWorker
from worker.core import publish as publish_module

GATEWAYS = ("gw-0", "gw-1", "gw-2")
CLOCK = "local function read_clock() return tonumber(redis.call('GET', 'clock')) end"
_STEPS = 400
_MOST_JOBS = 4
_MOST_WORKERS = 6
"""Over all of a schedule."""


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
        tenants = sorted(name.decode() for name in self.redis("KEYS", key("line", "*")))
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
            mock.patch.object(publish_module, "KEPT_S", 0.0),
            mock.patch.object(reader_module, "_PAGE_BYTES", 100),  # slow clients fall behind
            mock.patch.object(queue_module, "run_together", in_order),
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
    _, restarts, entries, ends, *_ = msgpack.unpackb(command[6], raw=True)
    written = [*zip(restarts[::3], restarts[1::3], strict=True)]
    written += [*zip(entries[::3], entries[1::3], strict=True)]
    for job, entry_id in written + [tuple(end[:2]) for end in ends]:
        yield job.decode(), entry_id.decode().partition("-")[0]
