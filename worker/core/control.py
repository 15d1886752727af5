"""What a worker is told on its control channel. All but operator calls are hints: a message that is
lost costs a second at most, until the next claim.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from shared.job.job import shard_in
from shared.platform.malformed import MalformedValues
from shared.store.queue import Control, parse_control
from worker.core.claim import Claims, Room
from worker.core.hand_over import HandOver
from worker.core.publish import Publisher

_REMEMBERED = 256


class ControlChannel:
    """Handles the messages of one worker's control channel, of all of its shards' servers."""

    def __init__(
        self,
        publisher: Publisher,
        claims: Sequence[Claims],
        room: Room,
        hand_over: HandOver,
        malformed: MalformedValues,
    ) -> None:
        """`claims`: of each shard."""
        self.operator_calls: asyncio.Queue[tuple[str, str, bytes]] = asyncio.Queue()
        """Id, action and options of each operator call."""
        self._received: deque[str] = deque(maxlen=_REMEMBERED)
        self._publisher = publisher
        self._claims = claims
        self._room = room
        self._hand_over = hand_over
        self._malformed = malformed
        self._tasks: set[asyncio.Task[None]] = set()

    def on_message(self, shards: Sequence[int], message: bytes) -> None:
        """Handle a message of the server of these shards; a malformed one is skipped, counted."""
        try:
            kind, arguments = parse_control(message)
            match kind:
                case Control.CLAIM:
                    for shard in shards:
                        self._claims[shard].wake(int(arguments[0]))
                case Control.YIELD:
                    for shard in shards:
                        self._make_room(shard, int(arguments[0]))
                case Control.LOST:
                    for name, generation in zip(arguments[::2], arguments[1::2], strict=True):
                        job_id = name.decode()
                        publisher = self._publisher.shards[shard_in(job_id)]
                        publisher.taken_away(job_id, int(generation))
                case Control.OPERATE:
                    call = arguments[0].decode(), arguments[1].decode(), arguments[2]
                    if call[0] not in self._received:  # it is repeated until it is answered
                        self._received.append(call[0])
                        self.operator_calls.put_nowait(call)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            self._malformed.skip("control message", f"{len(message)} bytes", error)

    def _make_room(self, shard: int, count: int) -> None:
        making_room = self._hand_over.make_room(self._claims[shard], self._room, shard, count)
        task = asyncio.create_task(making_room)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
