"""The output of a job that an earlier worker has begun: its log is read before the engine is
called, and only what is behind the log's end is sent.

`Continuation` adds up the entries of the log: the past of each engine call, and the chunks that the
client has. The engine makes these once more; `SentChunks` drops them, after a comparison with the
log of what does not differ by chance: `comparable` events, with the ids that the client has. Events
are `data: {...}`, or `event: <name>` with such a line behind it.

A job that can't be continued begins anew here if no client has seen any of it, else it fails: the
store decides that as it gets the `restarted` entry.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from shared.job.log import (
    START,
    Delta,
    DeltaDecoder,
    Entry,
    EventName,
    Position,
    Prompt,
    read_journal,
)
from shared.store.errors import until_answered
from shared.store.queue import HeldJob, Queue, Step
from worker.core.output import EditedOutput, Output
from worker.engines.interface import Context, Generated, Logprobs, Past, PastRefused

if TYPE_CHECKING:
    from worker.core.run import Run

log = logging.getLogger("flotilla.job")

_PAGE = 1000
"""Entries of one call."""
_CODES = {"context": "context_changed", "log": "log_lost"}
"""Errors of jobs whose clients may have seen a part of the answer, by the kind of the refusal."""
_ENTRIES_AT_ONCE = 256
"""Entries added in one turn of the event loop; they take a few milliseconds."""
_INDEX = re.compile(rb'"choices": ?\[\{"index": ?(\d+)')
_CREATED = re.compile(rb'"created(?:_at)?": ?\d+')
_ID = re.compile(rb'"(?:id|item_id|call_id)": ?("[^"\\]{1,200}")')
_DATA = b"data: "
_MESSAGE_EVENTS = ("message_", "content_block_")
"""How the types of Anthropic's events begin."""


class UnusableLog(Exception):
    """The log lacks entries, or they can't be read: nothing can be continued from it."""


class ContinuationDiffers(Exception):
    """The engine has not made the chunks again that the client has."""


# --- what the log has ---


class Continuation:
    """The answer so far, over all earlier attempts: the sum of the log's entries."""

    def __init__(self) -> None:
        self.pasts: dict[int, Past] = {}
        """By engine call; of every call that has reached the engine."""
        self.contexts: dict[int, Sequence[int]] = {}
        """By engine call; of none whose worker's release did not journal it."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.chunks: list[bytes] = []
        """The chunks that were sent, in order."""
        self.decoder = DeltaDecoder()
        """It has decoded `chunks`, as the gateways have."""
        self._deltas: dict[int, list[Generated]] = {}

    def add(self, entries: Iterable[Entry]) -> None:
        """Add the next entries. Raises UnusableLog."""
        for entry in entries:
            try:
                for item in entry.items:
                    chunk = self.decoder.decode([item])
                    if isinstance(item, bytes):
                        self.chunks.append(chunk)
                for record in read_journal(entry.journal, entry.items):
                    self._add_record(record)
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                raise UnusableLog(f"entry {entry.position} of the log can't be read") from error

    def _add_record(self, record: Delta | Prompt) -> None:
        call = record.call
        if isinstance(record, Prompt) and record.is_context:
            self.contexts[~call] = tuple(record.logprobs)
        elif isinstance(record, Prompt):
            self._deltas[call] = []
            self.pasts[call] = Past(self._deltas[call], _texts(record.logprobs))
            self.prompt_tokens += record.tokens
        else:
            ids = tuple(record.token_ids)
            logprobs: Logprobs | None = _texts(record.logprobs)
            # A call without a prompt is a LookupError.
            self._deltas[call].append(Generated(record.choice, ids, record.text, logprobs))
            self.completion_tokens += len(ids)


def difference(before: Sequence[int], now: Context) -> str:
    """Name of the first part that differs, empty if none does or they can't be compared."""
    if before[0] != now.scheme:
        return ""
    pairs = zip(Context._fields, before, now, strict=False)
    return next((name for name, old, new in pairs if old != new), "")


def _texts(packed: Any) -> Any:
    """A value from the log, whose strings are bytes there, as it was journaled."""
    if isinstance(packed, bytes):
        return packed.decode()
    if isinstance(packed, list | tuple):
        return tuple(_texts(part) for part in packed)
    return packed


async def read_past(queue: Queue, job: HeldJob) -> Sequence[Entry] | None:
    """The entries in front of the job's claim that count, in their order; None if the log does not
    reach as far: then the job can't be continued. Raises StoreError.

    Entries that follow the claim are others': the job has been taken away since.
    """
    claim, after = Position(job.generation, job.number), START
    entries: list[Entry] = []
    number = 0
    while job.number > 1:
        page = await queue.read(job.id, after, _PAGE)
        if after != START:
            if not page or page[0].position != after:
                return None
            page = page[1:]
        for entry in page:
            number += 1
            if entry.position == claim:
                return entries
            if entry.position.number != number:
                return None
            if entry.event == EventName.RESTARTED:
                entries = []
            entries.append(entry)
        if not page:
            return None
        after = page[-1].position
    return entries


# --- the output behind it ---


class ContinuedOutput(EditedOutput):
    """Drops what earlier attempts have sent, once `read_log` has found it. Of a job that can't be
    continued nothing is sent, until `begin_anew`."""

    __slots__ = ("_continuation", "_metrics", "_refusal_code", "_run", "_sent", "how", "refusal")

    def __init__(self, run: Run) -> None:
        super().__init__(run.job, run.worker.publisher)
        self.how = ""
        """How the engine continues the job; empty as long as it does not."""
        self.refusal = ""
        """Why the job can't be continued, in words for the log; empty: it can."""
        self._refusal_code = ""
        self._run = run
        self._metrics = run.worker.metrics
        self._continuation: Continuation | None = None
        self._sent: SentChunks | None = None

    async def read_log(self, queue: Queue) -> None:
        """Continue behind the job's log, or refuse if it can't be used. Waits for Redis as long as
        the output is wanted."""
        entries = await until_answered(
            lambda: read_past(queue, self.job),
            "a job's log was not read",
            is_wanted=lambda: not self.discarded,
        )
        if self.discarded:
            return
        past = Continuation()
        try:
            if entries is None:
                raise UnusableLog("the log lacks entries")
            for at in range(0, len(entries), _ENTRIES_AT_ONCE):
                past.add(entries[at : at + _ENTRIES_AT_ONCE])
                await asyncio.sleep(0)  # the tokens of other jobs go on meanwhile
        except UnusableLog as error:
            self._refuse("log", str(error))
            return
        if past.pasts or past.chunks:
            n_tokens, n_chunks = past.completion_tokens, len(past.chunks)
            log.info("continued behind its log: %d tokens, %d chunks", n_tokens, n_chunks)
            self._continuation, self._sent, past.chunks = past, SentChunks(past.chunks), []
            self.take_over(past.decoder, past.prompt_tokens, n_tokens)

    def _refuse(self, kind: str, reason: str) -> None:
        """The job can't be continued. `kind` is for the metrics."""
        if not self.refusal:
            self.refusal = reason
            self._refusal_code = _CODES.get(kind, "worker_lost")
            self._metrics.continuations_refused.labels(kind).inc()
            self._run.end_request()

    def begin_anew(self) -> None:
        """Once the engine has ended the request that was refused: begin anew, without a past."""
        if self._continuation and not self.subscribers:
            self._metrics.tokens_decoded_again.inc(self._continuation.completion_tokens)
        self._continuation = self._sent = None
        self.refusal = ""
        self.restart(self._refusal_code)

    def check_whole(self) -> None:
        """The answer has ended: refuse it if it lacks what the client has."""
        if self._sent is not None and not self._is_silent:
            try:
                self._sent.check_all_made()
            except ContinuationDiffers as error:
                self._refuse("different", str(error))

    @property
    def _is_silent(self) -> bool:
        """What the engine generates now is not sent."""
        return self.discarded or bool(self.refusal)

    # --- the engine's journal ---

    def past(self, call: int) -> Past | None:
        """See `Journal.past`."""
        past = self._continuation.pasts.get(call) if self._continuation else None
        return past if past and past.deltas else None

    def refuse_past(self, reason: str) -> None:
        """See `Journal.refuse_past`."""
        self._refuse("engine", reason)

    def continued(self, how: str, decoded_again: int) -> None:
        """See `Journal.continued`."""
        metrics = self._metrics
        if not self.how and self._continuation:
            self.how = how
            metrics.continued.labels(how).inc()
            metrics.tokens_taken_over.inc(self._continuation.completion_tokens)
        metrics.tokens_decoded_again.inc(decoded_again)

    def context(self, call: int, context: Context) -> None:
        """See `Journal.context`; one that is in the log is not journaled again."""
        known = self._continuation.contexts.get(call) if self._continuation else None
        if known is None or (known != context and self.past(call) is None):
            super().context(call, context)
        elif part := difference(known, context):
            self._refuse("context", f"another {part} than earlier attempts had")
            raise PastRefused(self.refusal)

    def prompt(self, call: int, n_tokens: int, logprobs: Sequence[Any] | None = None) -> None:
        """See `Journal.prompt`; a prompt that is in the log is not journaled again."""
        if self._continuation and call in self._continuation.pasts:
            self.reached_engine = True
        else:
            super().prompt(call, n_tokens, logprobs)

    def chunk(self, data: bytes) -> None:
        """Add bytes of a streamed answer, unless the client has them."""
        if self._is_silent:
            return
        if self._sent is None:
            super().chunk(data)
            return
        if self.edit is not None:
            data = self.edit.chunk(data)
        try:
            unsent = self._sent.unsent(data)
        except ContinuationDiffers as error:
            self._refuse("different", str(error))
        else:
            if unsent is not None:
                Output.chunk(self, unsent)

    def take(self, step: Step, claim: bytes) -> bool:
        """See `Output.take`; nothing of an answer that is refused."""
        return not self.refusal and super().take(step, claim)


class SentChunks:
    """The chunks of a stream that its client has, by the index of their choice.

    The chunks of several choices are mixed, and another attempt may mix them otherwise. So they are
    counted by choice; those without one (usage, [DONE]) are counted together.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._left: dict[int | None, deque[bytes]] = {}
        self._n_repeated: Counter[int | None] = Counter()
        self._created = b""
        self._ids: dict[bytes, bytes] = {}
        """The random ids of what is made again -> as the client has them. Later events, which the
        client does not have, get them too."""
        for chunk in chunks:
            self._left.setdefault(_choice_of(chunk), deque()).append(chunk)
            if not self._created:
                created = _CREATED.search(chunk)
                self._created = created[0] if created else b""

    def unsent(self, chunk: bytes) -> bytes | None:
        """The chunk with the stream's own `created` and ids; None if the client has it already.

        Raises ContinuationDiffers if it is not the chunk that the client has.
        """
        if self._created:
            chunk = _CREATED.sub(self._created, chunk, 1)
        chunk = self._with_sent_ids(chunk)
        if not self._left:
            return chunk
        choice = _choice_of(chunk)
        sent = self._left.get(choice)
        if not sent:
            return chunk
        expected = sent.popleft()
        if not sent:
            del self._left[choice]
        if chunk != expected:
            new, old = _ID.findall(chunk), _ID.findall(expected)
            if len(new) == len(old):
                self._ids |= {id_: was for id_, was in zip(new, old, strict=True) if id_ != was}
            chunk = self._with_sent_ids(chunk)
        if chunk != expected and comparable(chunk) != comparable(expected):
            raise ContinuationDiffers(
                f"chunk {self._n_repeated[choice]} of choice {choice} is another one than was sent"
            )
        self._n_repeated[choice] += 1
        return None

    def _with_sent_ids(self, event: bytes) -> bytes:
        for new, old in self._ids.items():
            event = event.replace(new, old)
        return event

    def check_all_made(self) -> None:
        """Raise ContinuationDiffers if the answer has ended without some that the client has."""
        if self._left:
            missing = sum(map(len, self._left.values()))
            raise ContinuationDiffers(f"{missing} chunks that were sent were not made again")


def _choice_of(chunk: bytes) -> int | None:
    """The index of a chunk's first choice; None if it has none."""
    found = _INDEX.search(chunk)
    if found:
        return int(found[1])
    choices = _parsed(chunk).get("choices")
    index = choices[0].get("index") if choices else None
    return index if isinstance(index, int) else None


def _parsed(event: bytes) -> dict[str, Any]:
    """The JSON object of an event; empty if it has none."""
    if event.startswith(b"event: "):
        event = event[event.find(b"\n") + 1 :]
    try:
        value = json.loads(event.removeprefix(_DATA))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def comparable(event: bytes) -> object:
    """An event without what differs by chance.

    That is the ids of tool calls and the signatures of thoughts, which are random, and what is the
    worker's rather than the answer's: its fingerprint, and how much of the prompt it had cached.
    """
    value = _parsed(event)
    if not value:
        return event
    if "choices" in value:  # OpenAI's chunks
        value.pop("system_fingerprint", None)
        if value.get("usage"):
            value["usage"].pop("prompt_tokens_details", None)
        for choice in value["choices"] or ():
            for call in (choice.get("delta") or {}).get("tool_calls") or ():
                if call.get("id"):
                    call["id"] = ""
    elif str(value.get("type")).startswith(_MESSAGE_EVENTS):
        # Anthropic's events. Their `input_tokens` are those that were not cached.
        for holder in (value, value.get("message") or {}):
            holder.pop("usage", None)
        (value.get("content_block") or {}).pop("id", None)
        (value.get("delta") or {}).pop("signature", None)
    elif isinstance(response := value.get("response"), dict):
        response.pop("usage", None)
    return value
