"""Whatever is lost, late, repeated or damaged: answers have no gap and no splice, each job ends
once, each client is told, and no other worker's entry is taken (model.py).

Each rule that this needs is switched off in turn, and such schedules find that it is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import hiredis
import pytest

from gateway.core.reader import Reader
from shared.job.log import DeltaEncoder, Entry, Position, Record
from shared.store.queue import HeldJob, Step
from shared.store.scripts import library
from tests.harness.servers import RedisServer, embedded_binary, one_redis_only
from tests.store.model import CLOCK, World
from tests.store.model_parts import Broken, Wire
from tests.store.model_processes import ModelWorker
from worker.core.claim import Claims
from worker.core.output import Output
from worker.core.publish import Publisher, ShardPublisher

REAL_CLOCK = (
    "local function read_clock() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end"
)
_MOST = 400
"""So many schedules are played to find that a rule is missing."""


@pytest.fixture(scope="module")
def wires(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Wire, Wire]]:
    """Two connections to a Redis of its own, without an append-only file: Redis 7, and Valkey."""
    binary = embedded_binary() if request.param == "embedded" else None
    server = RedisServer(tmp_path_factory.mktemp("model"), binary, appendonly="no")
    server.start()
    path = server.socket_url.removeprefix("unix://").partition("?")[0]
    wires = Wire(path), Wire(path)
    yield wires
    for wire in wires:
        wire.close()
    server.stop()


def load(redis: Wire, replaced: Mapping[str, str]) -> str:
    """Load the scripts with the clock of the model, and with what is `replaced`; the prefix."""
    prefix, text = library()
    for old, new in {REAL_CLOCK: CLOCK, **replaced}.items():
        assert old in text, old
        text = text.replace(old, new)
    redis("FUNCTION", "LOAD", "REPLACE", text)
    return prefix


@pytest.mark.parametrize("wires", ["any", "embedded"], indirect=True)
@pytest.mark.seeds(30)
def test_all_rules_hold(wires: tuple[Wire, Wire], seed: int) -> None:
    prefix = load(wires[0], {})
    World(*wires, prefix, seed).play()


# --- one rule is switched off ---


class MergingOutput(Output):
    """Knows what its latest entry was made of."""

    __slots__ = ("raw",)

    def __init__(self, job: HeldJob, publisher: Publisher) -> None:
        super().__init__(job, publisher)
        self.raw: tuple[list[bytes], list[Record], DeltaEncoder] = ([], [], self._encoder)

    def take(self, step: Step, claim: bytes) -> bool:
        self.raw = self._chunks, self._records, copy(self._encoder)
        return super().take(step, claim)

    def merge(self) -> None:
        """Make the latest entry anew, with what comes."""
        chunks, records, self._encoder = self.raw
        self._chunks, self._records = chunks + self._chunks, records + self._records
        self.number -= 1
        self._notify(self)


class MergingPublisher(ShardPublisher):
    """Does not repeat a call unchanged after a lost connection."""

    def disconnected(self) -> None:
        super().disconnected()
        if self._in_flight is None:
            return
        step, outputs = self._in_flight
        latest = {output.entry_prefix + str(output.number): output for output in outputs}
        entry_ids = step.entries[1::3]
        if not (step.restarts or step.ends) and latest.keys() >= set(entry_ids):
            self._in_flight = None
            for entry_id in entry_ids:
                output = latest[entry_id]
                if self.outputs.get(output.id) is output:
                    assert isinstance(output, MergingOutput)
                    output.merge()


class SilentClaims(Claims):
    """Asks for nothing without room."""

    async def claim(self) -> bool:
        return await super().claim() if self._room.free() or self._must_reconcile else True


class ForgettingPublisher(ShardPublisher):
    """Sends only what it keeps of the entries that Redis has lost."""

    def _put_again(self, step: Step, output: Output, after: int, ends: Sequence[Any]) -> bool:
        while not super()._put_again(step, output, after, ends) and after < output.number:
            after += 1
        return True


class Merging(ModelWorker):
    """Puts what was not acknowledged together with what is new, and sends that again."""

    output_class, publisher_class = MergingOutput, MergingPublisher


class Silent(ModelWorker):
    """Asks for nothing without room."""

    claims_class = SilentClaims


class Forgetting(ModelWorker):
    """Sends only what it keeps of the entries that Redis has lost."""

    publisher_class = ForgettingPublisher


class Exclusive(Reader):
    """Does not look whether its own last entry is there still."""

    def _take_page(self, after: Position, entries: Sequence[Entry], asked: int) -> None:
        own = (
            [Entry(after, None, ())]
            if self.number and all(e.position != after for e in entries)
            else []
        )
        super()._take_page(after, [*own, *entries], asked)


class Deaf(Reader):
    """Drops what comes while it reads a page."""

    def _go_live(self) -> None:
        self._kept.clear()
        super()._go_live()


class Unwatching(Reader):
    """Reads the log after a lost connection, but does not have the gateway watch again."""

    def resync(self) -> None:
        if self.is_current:
            self._fall_behind()
        elif not self.is_behind:
            super().resync()


@dataclass
class Control:
    """What is replaced in the scripts, and the arguments of the World."""

    scripts: dict[str, str] = field(default_factory=dict)
    world: dict[str, Any] = field(default_factory=dict)
    first: int = 0
    """The seed of a schedule that needs the rule. If scripts change, others are played, too."""
    seeds: range = range(_MOST)
    """Those of schedules in which all goes well with the rule; Redis loses data in the odd ones."""


_FAILS = "\n    take(id, job, 'failed', code)"
_NEVER = "if false then"
_CLAIMED = "local marker = mark(id, job, generation, number, event_entry('claimed', worker))"
CONTROLS = {
    "generations": Control(
        {"job.generation = math.max(now_us(), last + 1)": "job.generation = 1"}, first=3
    ),
    "generations are times": Control(
        {"job.generation = math.max(now_us(), last + 1)": "job.generation = last + 1"}, first=17
    ),
    "an entry of each claim": Control(
        {
            _CLAIMED: f"""if number > 0 then job.generation, number = generation, number - 1 end
                local marker = ''
                if number == 0 then {_CLAIMED[len("local ") :]} end"""
        },
        first=45,
    ),
    "what Redis has lost": Control(
        {"for i = 1, #acknowledged, 3 do check(": "for i = 1, 0, 3 do check("}, first=11
    ),
    "the number of known jobs": Control(
        {"if count_held(worker) > tonumber(ARGV[4]) then return nil end": ""}, first=33
    ),
    "jobs that are in no list": Control(
        {"for _, each in ipairs(found) do look_at(unpack(each)) end": ""}, first=12
    ),
    "deadlines at the claim": Control(
        {"if job.deadline_us ~= '' and tonumber(job.deadline_us) <= now_us() then": _NEVER},
        first=5,
    ),
    "leases that lie ahead": Control(
        {"if lease_end > now + lease_us(worker) then beat(worker) end": ""}
    ),
    "frames of refused entries": Control(
        {"some_refused and without_refused(ARGV[i + 1]) or ARGV[i + 1]": "ARGV[i + 1]"}, first=182
    ),
    "restarts that a client sees": Control(
        {f"if is_seen(job) then{_FAILS}": f"{_NEVER}{_FAILS}"}, first=32
    ),
    "unchanged repeats": Control(world={"worker": Merging}, first=288),
    "claims without room": Control(world={"worker": Silent}, first=13),
    "ten seconds of entries": Control(world={"worker": Forgetting}, first=109),
    "readers' own last entries": Control(
        world={"reader": Exclusive, "damages": 1.0}, seeds=range(1, 2 * _MOST, 2), first=199
    ),
    "frames that come with a page": Control(
        world={"reader": Deaf, "loses_frames": False, "looks": False},
        seeds=range(0, _MOST, 2),
        first=16,
    ),
    "watches after a loss": Control(world={"reader": Unwatching}),
    "looks for lost frames": Control(world={"looks": False}),
    "workers that see lost connections": Control(world={"hides": True}, first=13),
}
"""By the name of the rule that is missing."""


@one_redis_only
@pytest.mark.parametrize("wires", ["any"], indirect=True)
@pytest.mark.parametrize("rule", CONTROLS)
def test_the_model_finds_that_a_rule_is_missing(wires: tuple[Wire, Wire], rule: str) -> None:
    control = CONTROLS[rule]
    prefix = load(wires[0], control.scripts)
    for seed in (control.first, *control.seeds):
        try:
            World(*wires, prefix, seed, **control.world).play()
        except (Broken, hiredis.ReplyError):
            return
    pytest.fail(f"{len(control.seeds)} schedules do without it")
