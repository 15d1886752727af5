"""The queue on each kind of server, with a clock that tests set, and a worker without engine."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from redis import Redis

from shared.job.job import Job, NewJob, new_job_id
from shared.job.log import START, Entry, Position, frame_head, frames, pack_entry, pack_frame
from shared.job.result import JobResult
from shared.job.rules import DEFAULT, NO_QUOTAS, Quotas
from shared.store import keys
from shared.store.queue import (
    Control,
    Emitted,
    HeldJob,
    JoinedJob,
    Queue,
    Step,
    pack_end,
    parse_control,
)
from shared.store.scripts import library
from shared.store.servers import Servers
from shared.store.subscription import channel_command
from tests.harness.servers import RedisServer, redis_of_kind

POOL, TENANT, GATEWAY = "pool", "tenant", "gw-1"
CLOCK = (
    "local t = redis.call('TIME') return t[1] * 1000000 + t[2]",
    "return tonumber(redis.call('INCRBY', base .. 'clock', 1))",
)
"""In the scripts: Redis' clock, and one that tests set. It goes on by 1 us for each call."""
BEGIN_US = 10**15
_PASS = "#!lua flags=allow-oom\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])"
"""Also where memory is full."""


@pytest.fixture(scope="session")
def start_kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RedisServer]]:
    """Starts a kind of server, or returns the one that runs."""
    with contextlib.ExitStack() as stack:
        yield cache(
            lambda name: stack.enter_context(redis_of_kind(name, tmp_path_factory.mktemp(name)))
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of `kind` runs on Redis, Valkey and a cluster, or on the server that --redis names."""
    if "kind" in metafunc.fixturenames:
        named = metafunc.config.getoption("redis")
        kinds = ["any", "embedded", "cluster"] if named == "any" else [named]
        metafunc.parametrize("kind", kinds, indirect=True)


def _emptied(server: RedisServer) -> RedisServer:
    with server.client() as client:
        client.flushall()
        client.function_flush()  # a test may have changed them
    return server


@pytest.fixture
def kind(request: pytest.FixtureRequest, start_kind: Callable[[str], RedisServer]) -> RedisServer:
    """Each kind of server in turn, emptied."""
    return _emptied(start_kind(request.param))


@pytest.fixture
def one(pytestconfig: pytest.Config, start_kind: Callable[[str], RedisServer]) -> RedisServer:
    """One server, emptied: for what is the same on all kinds."""
    return _emptied(start_kind(pytestconfig.getoption("redis")))


class ChannelSubscriber:
    """A subscriber of a channel; each call returns all that was published since the last one."""

    def __init__(self, store: Redis, channel: str, shard: int = 0) -> None:
        """`channel`: by the name that it has on one Redis."""
        self._store = store
        self._channel = keys.channel_at(shard, channel)
        self._pubsub = store.pubsub()
        self._pubsub.execute_command(channel_command("SUBSCRIBE"), self._channel)
        self._next()

    def _next(self) -> bytes:
        """What comes next: a message, or the number of subscriptions."""
        while (message := self._pubsub.parse_response(block=False, timeout=5)) is None:
            continue
        return message[2]

    def messages(self) -> list[bytes]:
        """The messages since the last call."""
        self._store.execute_command(channel_command("PUBLISH"), self._channel, "that is all")
        received = []
        while (message := self._next()) != b"that is all":
            received.append(message)
        return received

    def leave(self) -> None:
        """Receive nothing any more, from the return on: Redis sees a closed connection later."""
        command = channel_command("SUBSCRIBE").replace("SUBSCRIBE", "UNSUBSCRIBE")
        self._pubsub.execute_command(command, self._channel)
        self._next()

    def close(self) -> None:
        self._pubsub.close()


class Case:
    """An empty queue, and what happens around it."""

    def __init__(self, queue: Queue, server: Redis, stack: ExitStack) -> None:
        self.queue, self._stack = queue, stack
        self.server: Any = server
        self.base = keys.base(0)
        self._clocks = [keys.base(shard) + "clock" for shard in range(queue.shards)]
        for clock in self._clocks:
            server.set(clock, BEGIN_US)

    def load(self, *changes: tuple[str, str]) -> None:
        """Have Redis run the scripts with these changes."""
        _, text = library()
        for old, new in changes:
            assert text.count(old) == 1, f"the scripts have no {old!r}"
            text = text.replace(old, new)
        self.server.function_load(text, replace=True)

    def sleep(self, seconds: float) -> None:
        """Let time pass, or go back."""
        for clock in self._clocks:
            self.server.eval(_PASS, 1, clock, round(seconds * 1e6))

    def record(self, job_id: str) -> dict[str, str]:
        """The fields of a record that are text."""
        raw = self.server.hgetall(keys.job(0, job_id))
        return {name.decode(): value.decode(errors="replace") for name, value in raw.items()}

    def names(self) -> set[str]:
        """The keys that there are, without what belongs to the shard as a whole."""
        names = {key.decode().removeprefix(self.base) for key in self.server.scan_iter("*")}
        return names - {"clock", "alive", "place", "probe", "pools", "follows"}

    def subscriber(self, channel: str) -> ChannelSubscriber:
        """Receives what is published on a channel."""
        subscriber = ChannelSubscriber(self.server, channel)
        self._stack.callback(subscriber.close)
        return subscriber

    def gateway(self, name: str = GATEWAY) -> GatewayChannel:
        """A gateway that is subscribed."""
        return GatewayChannel(self.subscriber(keys.tokens_channel(name)))

    def worker(
        self, name: str = "w-1", *, room: int = 100, heard: bool = True, shard: int = 0
    ) -> Holder:
        """A worker of one shard, subscribed to its control channel or not."""
        channel = self.subscriber(keys.control_channel(name)) if heard else None
        return Holder(self, name, room, channel, shard)

    async def begin(self, **changes: Any) -> tuple[Holder, HeldJob]:
        """Submit a job and have a worker without a connection claim it; no other may wait."""
        job = await self.submit(**changes)
        worker = self.worker(heard=False, shard=job.shard)
        return worker, await worker.claim_one()

    async def lose(self, worker: str = "w-1") -> dict[str, str]:
        """A worker's lease is over, and a round of upkeep takes its jobs."""
        self.server.zadd(f"{self.base}workers", {worker: 1})
        return dict((await self.queue.tick(0)).taken)

    async def submit(self, **changes: Any) -> NewJob:
        """Submit a job. Raises what refuses it."""
        job = make_job(**changes)
        await self.submit_all([job])
        return job

    async def submit_all(self, jobs: list[NewJob], max_depth: int = 1000) -> list[int | JoinedJob]:
        """Submit jobs in one call; how many wait, of each. Raises what refuses one."""
        reply = await self.queue.submit(jobs[0].shard, jobs, max_depth)
        replies = self.queue.parse_submit(jobs, reply)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies  # type: ignore[return-value]

    async def shown(self, job: Any) -> Job:
        """The job as its record has it."""
        (found,) = await self.queue.get(job.id)
        assert found is not None
        return found

    async def state(self, job: Any) -> str:
        """The job's state; `gone` without a record."""
        (found,) = await self.queue.get(job.id)
        return found.state.value if found else "gone"

    async def log(self, job: Any) -> list[Entry]:
        """All of a job's log."""
        return await self.queue.read(job.id, START, 10_000)

    async def events(self, job: Any) -> list[str]:
        """The log of a job: names of events, and the texts of what was generated."""
        found = []
        for entry in await self.log(job):
            found += [item.decode() for item in entry.items if isinstance(item, bytes)]
            found += [entry.event] if entry.event else []
        return found

    def place(self, job: Any) -> str:
        """Where a job waits: `first`, `line`, or nowhere."""
        lane = f"{POOL}:{job.lane}"
        in_line = self.server.zscore(f"{self.base}line:{lane}:{job.tenant}", job.id) is not None
        if self.server.zscore(f"{self.base}first:{POOL}", job.id) is not None:
            return "both" if in_line else "first"
        return "line" if in_line else ""


class GatewayChannel:
    """What a gateway receives."""

    def __init__(self, channel: ChannelSubscriber) -> None:
        self._channel = channel

    def frames(self) -> list[tuple[str, int, str]]:
        """Job, number, and event or text of each frame since the last call."""
        return [frame for message in self.messages() for frame in message]

    def messages(self) -> list[list[tuple[str, int, str]]]:
        """`frames` of each message."""
        return [[_shown(*frame) for frame in frames(m)] for m in self._channel.messages()]

    def details(self) -> list[Any]:
        """The events of the frames since the last call, with what belongs to them."""
        found = [frame for m in self._channel.messages() for frame in frames(m)]
        return [event for *_, event in found if event is not None]


def _shown(
    job_id: bytes, generation: int, number: int, journal: Any, items: Any, event: Any
) -> tuple[str, int, str]:
    text = b"".join(item for item in items or () if isinstance(item, bytes))
    shown = text + (event[0] if event else b"")
    return job_id.decode(), number, shown.decode(errors="replace")


class Holder:
    """A worker: it claims, and writes what a test says."""

    def __init__(
        self, case: Case, name: str, room: int, channel: ChannelSubscriber | None, shard: int
    ) -> None:
        self._queue, self._channel, self._shard = case.queue, channel, shard
        self.name, self.room = name, room
        self.jobs: dict[str, HeldJob] = {}
        self.numbers: dict[str, int] = {}
        self.version = b""

    async def claim(self, most: int | None = None, **options: Any) -> list[HeldJob]:
        """Claim at most so many jobs, and keep them."""
        room = options.pop("room", max(0, self.room - len(self.jobs)))
        options = {"known": len(self.jobs), "room": room} | options
        jobs = await self._queue.claim(
            self._shard, POOL, self.name, most=room if most is None else most, **options
        )
        assert jobs is not None, f"{self.name} has to reconcile"
        self.jobs |= {job.id: job for job in jobs}
        self.numbers |= {job.id: job.number for job in jobs}
        return jobs

    async def claim_one(self) -> HeldJob:
        """Claim the only job."""
        (job,) = await self.claim(1)
        return job

    def next_id(self, job: HeldJob) -> str:
        """The id of the job's next entry."""
        self.numbers[job.id] += 1
        return str(Position(job.generation, self.numbers[job.id]))

    async def send(self, step: Step) -> Emitted:
        """Send a step; jobs that are refused are dropped."""
        reply = await self._queue.emit(self._shard, self.name, self.version, step)
        emitted = Queue.parse_emit(reply)
        self.version = emitted.version
        for job_id in emitted.refused:
            self.jobs.pop(job_id, None)
        return emitted

    async def write(self, *jobs: HeldJob, text: str = "x", again: bool = False) -> Emitted:
        """One step with a token of each of these jobs. `again`: the connection was lost before."""
        entries: list[Any] = []
        messages: dict[str, list[bytes]] = {}
        for job in jobs:
            number = self.numbers[job.id]
            entry = pack_entry([(0, 0, [number], text)], [text.encode()])
            entries += [job.id, self.next_id(job), entry]
            frame = pack_frame(frame_head(job.id, job.generation), number + 1, entry)
            for gateway in job.watchers.split() if job.stream or job.watched else ():
                messages.setdefault(gateway, []).append(frame)
        acknowledged = [w for job in jobs for w in (job.id, job.generation, job.number)]
        return await self.send(
            Step(entries=entries, messages=messages, acknowledged=acknowledged if again else ())
        )

    async def end(self, job: HeldJob, text: str = "", **answer: Any) -> Emitted:
        """The last step of a job."""
        return await self.send(Step(ends=[self.last(job, text, **answer)]))

    def last(self, job: HeldJob, text: str = "", **answer: Any) -> tuple[Any, ...]:
        """The end of a job, with the output of the last step."""
        self.next_id(job)
        self.jobs.pop(job.id, None)
        items, result = [text.encode()] if text else None, make_answer(**answer)
        tokens = result.completion_tokens
        return pack_end(job, self.numbers[job.id], None, items, tokens, result)

    async def restart(self, job: HeldJob, code: str = "worker_lost") -> Emitted:
        """Have the answer begin anew."""
        return await self.send(Step(restarts=[job.id, self.next_id(job), code]))

    def leave_channel(self) -> None:
        """It hears nothing any more."""
        assert self._channel is not None
        self._channel.leave()

    def told(self) -> list[tuple[Control, list[Any]]]:
        """The control messages since the last call."""
        assert self._channel is not None
        return [
            (kind, [w.decode() if isinstance(w, bytes) else w for w in words])
            for kind, words in map(parse_control, self._channel.messages())
        ]

    def lost(self) -> list[Any]:
        """What messages name as taken away from it since the last call."""
        return [word for kind, words in self.told() if kind is Control.LOST for word in words]

    def told_to(self, kind: Control) -> int:
        """The sum of the numbers in messages of a kind since the last call."""
        return sum(words[0] for each, words in self.told() if each is kind)


async def beat(case: Case, *workers: Holder, seconds: float) -> dict[str, str]:
    """So much time passes, with heartbeats and ticks."""
    taken: dict[str, str] = {}
    for _ in range(round(seconds / 0.1)):
        for worker in workers:
            await case.queue.heartbeat(0, worker.name)
        taken |= (await case.queue.tick(0)).taken
        case.sleep(0.1)
    return taken


def make_job(**changes: Any) -> NewJob:
    """A streamed job that a gateway waits for."""
    fields: dict[str, Any] = {
        "id": new_job_id(1),
        "tenant": TENANT,
        "pool": POOL,
        "lane": DEFAULT,
        "model": "m",
        "endpoint": "/v1/chat/completions",
        "body": b'{"model": "m"}',
        "stream": True,
        "ttl_s": 60.0,
        "gateway": GATEWAY,
    }
    return NewJob(**(fields | changes))


def make_answer(**changes: Any) -> JobResult:
    fields: dict[str, Any] = {
        "error_code": "",
        "status": 200,
        "content_type": "text/event-stream",
        "body": b"",
        "prompt_tokens": 2,
        "completion_tokens": 3,
    }
    return JobResult(**(fields | changes))


@asynccontextmanager
async def open_case(
    server: RedisServer, quotas: Quotas = NO_QUOTAS, changes: Sequence[tuple[str, str]] = (), *,
    url: str = "", shards: int = 1, own_clock: bool = True,
) -> AsyncIterator[Case]:  # fmt: skip
    """A queue on this server, whose scripts may be changed, on the tests' clock or on Redis'."""
    async with Servers(url or server.url, shards) as servers:
        queue = Queue(servers, quotas=quotas)
        with server.client() as client, ExitStack() as stack:
            case = Case(queue, client, stack)
            if own_clock or changes:
                case.load(*([CLOCK] if own_clock else []), *changes)
            try:
                yield case
            finally:
                await queue.close()


@pytest.fixture
async def case(kind: RedisServer) -> AsyncIterator[Case]:
    """An empty queue on each kind of server."""
    async with open_case(kind) as case:
        yield case


@pytest.fixture
async def live(kind: RedisServer) -> AsyncIterator[Case]:
    """The same on Redis' own clock."""
    async with open_case(kind, own_clock=False) as case:
        yield case


@pytest.fixture
async def alone(one: RedisServer) -> AsyncIterator[Case]:
    """The same on one server."""
    async with open_case(one, own_clock=False) as case:
        yield case
        case.server.config_set("maxmemory", 0)


class Mutant(NamedTuple):
    """A test, and a change of the scripts with which it fails."""

    test: Callable[..., Awaitable[None]]
    old: str
    new: str
    arguments: Mapping[str, Any]


MUTANTS: list[Mutant] = []
Test = TypeVar("Test", bound=Callable[..., Awaitable[None]])


def missed_without(old: str, new: str, **arguments: Any) -> Callable[[Test], Test]:
    """The test fails where this is changed in the scripts, which test_mutants.py shows."""

    def noted(test: Test) -> Test:
        MUTANTS.append(Mutant(test, old, new, arguments))
        return test

    return noted


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of 127.0.0.1, with its key beside it."""
    certificate, key = tmp_path / "node.crt", tmp_path / "node.key"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=node -keyout {key} "
        f"-out {certificate} -addext subjectAltName=IP:127.0.0.1".split(),
        check=True,
        capture_output=True,
    )
    return certificate
