"""The checks of a run of kills: each kind of damage is found, and an undamaged run has none."""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pytest

from load_tests.clients.sse_parser import SseEvent, SseParser
from load_tests.faults import command
from load_tests.faults.kills import controls
from load_tests.faults.kills.kill_run import RunResult, RunShape, usual_fleet
from load_tests.faults.kills.kill_schedule import KillKind, PlannedKill, plan
from load_tests.faults.kills.killer import Killer
from load_tests.faults.kills.pauses import Silence, pauses, silence_after
from load_tests.faults.kills.report import as_json, failures, kills_table, summary_table
from load_tests.faults.kills.tally import Tally
from load_tests.oracle.answer import Answer, joined
from load_tests.oracle.differences import differences
from load_tests.oracle.observation import End, Observation
from load_tests.oracle.record_check import contradictions, record_errors, record_is_behind
from load_tests.oracle.request_classes import CLASSES, Mode, make_request
from load_tests.oracle.stored_job import StoredJob
from load_tests.oracle.undisturbed import Expected, Undisturbed
from shared.job.job import Attempt, Job
from shared.job.job_log import Entry
from shared.job.states import JobState

WORDS = ("[simulated]", " tide", " wave", " rope", " ship")


def chunk(text: str, *, index: int = 0, job_id: str = "chatcmpl-1", created: int = 1) -> bytes:
    return (
        f'{{"id":"{job_id}","created":{created},'
        f'"choices":[{{"index":{index},"delta":{{"content":"{text}"}}}}]}}'
    ).encode()


def streamed(words: tuple[str, ...] = WORDS, *, done: bool = True, **how: Any) -> Answer:
    answer = Answer(status=200)
    for word in words:
        answer.add_chunk(chunk(word, **how))
    if done:
        answer.add_chunk(b"[DONE]")
    return answer


def seen_stream(answer: Answer, end: End = End.COMPLETE, mode: Mode = Mode.CALL) -> Observation:
    request = make_request(CLASSES[0], random.Random(1), "tag", mode)
    expected = Expected(
        streamed(), Counter({(0, 0): len(WORDS)}), {0: "".join(WORDS)}, prompt_tokens=7
    )
    return Observation(
        request, expected, began=0.0, ended=9.0, end=end, job_id="job_1", answer=answer
    )


def stored_job(
    entries: list[Entry] | None = None, *, ttl_ms: int = 1000, **changes: Any
) -> StoredJob:
    words = [[0, 0, [n], word] for n, word in enumerate(WORDS)]
    if entries is None:
        entries = [
            Entry(1, (), [[0, 7], words[0]], ""),
            Entry(2, (), words[1:], ""),
            Entry(3, (), None, "completed", tokens=len(WORDS)),
        ]
    values: dict[str, Any] = {field.name: None for field in fields(Job)}  # what is not checked
    values |= {
        "state": JobState.COMPLETED,
        "attempts": (
            Attempt("w-1", 1.0, 2.0, "worker_lost"),
            Attempt("w-2", 2.0, 3.0, JobState.COMPLETED),
        ),
        "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
    }
    job = Job(**(values | changes))
    return StoredJob(job, entries, lacks_entries=False, ttl_ms=ttl_ms, log_ttl_ms=1000)


def result(tally: Tally, **shape: Any) -> RunResult:
    return RunResult(RunShape(kills=1, seed=1, rate=1.0, **shape), tally, 1.0, ["chat"])


# --- answers ---


def test_an_answer_with_another_id_and_time_is_right() -> None:
    assert not differences(seen_stream(streamed(job_id="chatcmpl-other", created=99)))


@pytest.mark.parametrize(
    ("words", "lost", "repeated"),
    [
        (WORDS[:2] + WORDS[3:], 1, 0),
        (WORDS[:3], 2, 0),
        (WORDS[:3] + WORDS[2:], 0, 1),
        (WORDS + WORDS, 0, 5),
    ],
)
def test_lost_and_repeated_tokens_are_counted(
    words: tuple[str, ...], lost: int, repeated: int
) -> None:
    found = differences(seen_stream(streamed(words)))
    assert (found.tokens_lost, found.tokens_repeated, found.wrong) == (lost, repeated, [])


def test_tokens_of_another_answer_are_wrong() -> None:
    found = differences(seen_stream(streamed((*WORDS[:4], " lane"))))
    assert found.wrong
    assert found.tokens_lost == 1


def test_the_order_of_two_choices_does_not_matter_but_that_within_one_does() -> None:
    both = Answer(status=200)
    for word in WORDS:
        both.add_chunk(chunk(word, index=0))
        both.add_chunk(chunk(word, index=1))
    both.add_chunk(b"[DONE]")
    seen = seen_stream(streamed())
    seen.expected.answer = both
    other = Answer(status=200)
    for index in (1, 0):
        for word in WORDS:
            other.add_chunk(chunk(word, index=index))
    other.add_chunk(b"[DONE]")
    seen.answer = other
    assert not differences(seen)
    seen.answer.chunks[1].reverse()
    assert differences(seen).wrong


def test_a_cut_stream_has_lost_nothing_that_was_to_come() -> None:
    assert not differences(seen_stream(streamed(WORDS[:3], done=False), End.CUT))
    found = differences(seen_stream(streamed((*WORDS[:1], *WORDS[2:3]), done=False), End.CUT))
    assert found.tokens_lost == 1


def test_created_must_not_change_within_an_answer() -> None:
    answer = streamed(WORDS[:2], done=False)
    for word in WORDS[2:]:
        answer.add_chunk(chunk(word, created=2))
    answer.add_chunk(b"[DONE]")
    assert differences(seen_stream(answer)).wrong == ["`created` changed within the answer"]


def test_a_stream_without_its_last_event_is_wrong() -> None:
    assert differences(seen_stream(streamed(done=False))).wrong == ["the stream has no [DONE]"]


def test_damaged_bytes_are_wrong() -> None:
    answer = streamed(WORDS[:4], done=False)
    answer.add_chunk(chunk(WORDS[4])[:-9])
    answer.add_chunk(b"[DONE]")
    assert differences(seen_stream(answer)).wrong


def test_events_out_of_order_are_wrong() -> None:
    seen = seen_stream(streamed())
    seen.out_of_order = 1
    assert differences(seen).wrong


# --- records ---


def test_a_right_record_has_no_errors() -> None:
    assert record_errors(seen_stream(streamed()), stored_job()) == []


@pytest.mark.parametrize(
    ("stored", "error"),
    [
        (None, "no record"),
        (stored_job(ttl_ms=-1), "time to live"),
        (stored_job(state=JobState.IN_PROGRESS), "still in_progress"),
        (stored_job(state=JobState.FAILED), "but it is failed"),
        (stored_job(usage={"prompt_tokens": 7, "completion_tokens": 4}), "its usage is"),
        (
            stored_job(
                attempts=(
                    Attempt("w-1", 1.0, 2.0, "worker_lost"),
                    Attempt("w-2", 1.5, 3.0, JobState.COMPLETED),
                )
            ),
            "at the same time",
        ),
        (stored_job([Entry(1, (), None, "completed", tokens=5)]), "tokens, not"),
        (stored_job([Entry(2, (), None, "completed", tokens=5)]), "numbered"),
        (stored_job([Entry(1, (), None, "failed", tokens=5)]), "ends with 'failed'"),
        (
            stored_job([Entry(n, (), None, "completed", tokens=5) for n in (1, 2)]),
            "2 terminal entries",
        ),
        (stored_job([]), "0 terminal entries"),
    ],
)
def test_each_damage_of_a_record_is_found(stored: StoredJob | None, error: str) -> None:
    assert any(error in each for each in record_errors(seen_stream(streamed()), stored))


def test_a_client_of_events_gets_one_terminal_event() -> None:
    seen = seen_stream(streamed(), mode=Mode.EVENTS)
    assert record_errors(seen, stored_job()) == ["its client got 0 terminal events"]
    seen.terminal_events = 1
    assert record_errors(seen, stored_job()) == []


ONE_WORD = Entry(1, (), [[0, 7], [0, 0, [0], WORDS[0]]], "")
OTHER = Entry(1, (), [[0, 7], [0, 0, [0], "[other]"]], "")


@pytest.mark.parametrize(
    ("words", "end", "stored", "wrong", "behind"),
    [
        (WORDS, End.COMPLETE, None, [], False),
        (WORDS, End.COMPLETE, stored_job(), [], False),
        (WORDS, End.COMPLETE, stored_job([]), ["its log has"], False),
        (WORDS, End.COMPLETE, stored_job(state=JobState.FAILED), ["but it is failed"], False),
        (WORDS[:2], End.CUT, stored_job(), [], False),
        (WORDS[:2], End.CUT, stored_job([ONE_WORD], state=JobState.FAILED), [], True),
        (WORDS[:2], End.FAILED, stored_job([OTHER], state=JobState.FAILED), ["text in"], True),
    ],
)
def test_where_redis_may_lose_records_they_must_not_contradict_the_answer(
    words: tuple[str, ...], end: End, stored: StoredJob | None, wrong: list[str], behind: bool
) -> None:
    seen = seen_stream(streamed(words, done=end is End.COMPLETE), end)
    found = contradictions(seen, stored)
    assert [text for text in wrong if any(text in each for each in found)] == wrong
    assert bool(found) == bool(wrong)
    assert record_is_behind(seen, stored) == behind


def test_the_text_of_the_job_object_is_compared() -> None:
    seen = seen_stream(streamed(), mode=Mode.POLLED)
    seen.job_texts = {0: "".join(WORDS)}
    assert not differences(seen)
    seen.job_texts = {0: "".join(WORDS[:4])}
    assert differences(seen).wrong == ["the text in the job's object is wrong"]


# --- the sums ---


def test_a_good_run_passes_and_has_a_report() -> None:
    tally = Tally(generated_tokens=8)
    tally.kills[KillKind.WORKER] = 1
    seen = seen_stream(streamed())
    seen.at.extend((1.0, 1.1, 1.4, 1.5))
    tally.add(seen, stored_job(), [(KillKind.WORKER, 1.12)])
    good = result(tally)
    assert failures(good) == []
    assert (tally.tokens, tally.decoded_again, tally.streams, tally.streams_cut) == (5, 3, 1, 0)
    assert tally.pauses[KillKind.WORKER] == [pytest.approx(0.3)]
    assert json.loads(json.dumps(as_json(good)))["terminal_entries"] == {"1": 1}
    assert "| 0.30 |" in kills_table(good).markdown()
    assert "tokens lost" in summary_table(good).markdown()


def test_a_long_pause_fails_the_run() -> None:
    tally = Tally()
    tally.add(seen_stream(streamed()), stored_job())
    tally.pauses[KillKind.WORKER] = [0.2] * 90 + [4.0] * 10
    assert failures(result(tally)) == ["pause p99 is 4.00 s, the limit is 1.5 s"]
    assert failures(result(tally), pauses=False) == []
    tally.pauses[KillKind.STOP] = tally.pauses.pop(KillKind.WORKER)
    tally.pauses[KillKind.WORKER] = []
    assert failures(result(tally)) == [], "a stopped process is found by its lease only"


def test_cut_streams_and_leftovers_fail_the_run() -> None:
    tally = Tally(leftovers={"queue entries": 2})
    tally.add(seen_stream(streamed(WORDS[:2], done=False), End.CUT), stored_job())
    found = failures(result(tally))
    assert "1 streams cut" in found
    assert "2 left over: queue entries" in found


def test_a_refused_request_is_counted_apart() -> None:
    tally = Tally()
    seen = seen_stream(Answer(), End.REFUSED)
    seen.code = "redis_unavailable"
    tally.add(seen, None)
    assert tally.refused == Counter({"redis_unavailable": 1})
    assert failures(result(tally)) == ["no job was accepted"]


# --- real vLLM: chunks are joined, and the plan waits for replacements ---


def ids_chunk(ids: list[int], text: str, *, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "token_ids": ids, "finish_reason": finish}
    return json.dumps({"created": 1, "choices": [choice]}).encode()


def seen_on_vllm(chunks: list[bytes], end: End = End.COMPLETE) -> Observation:
    seen = seen_stream(Answer(), end)
    right = [ids_chunk([1], "a"), ids_chunk([2], "b"), ids_chunk([3], "c", finish="length")]
    for answer, datas in ((seen.answer, chunks), (right_answer := Answer(), right)):
        for data in [*datas, b"[DONE]"][: None if end is End.COMPLETE else -1]:
            answer.add_chunk(data)
    seen.expected = replace(seen.expected, answer=right_answer, joined=True)
    return seen


def test_merged_chunks_are_the_same_answer() -> None:
    merged = [ids_chunk([1, 2], "ab"), ids_chunk([3], "c", finish="length")]
    assert not differences(seen_on_vllm(merged))
    seen = seen_on_vllm(merged)
    seen.expected.joined = False
    assert differences(seen)


@pytest.mark.parametrize(
    ("chunks", "lost", "repeated"),
    [
        ([ids_chunk([1], "a"), ids_chunk([3], "c", finish="length")], 1, 0),
        ([ids_chunk([1, 2], "ab"), ids_chunk([2, 3], "bc", finish="length")], 0, 1),
        ([ids_chunk([1, 2, 3], "abc")], 1, 0),  # its end is missing
    ],
)
def test_lost_and_repeated_tokens_of_merged_chunks(
    chunks: list[bytes], lost: int, repeated: int
) -> None:
    found = differences(seen_on_vllm(chunks))
    assert (found.tokens_lost, found.tokens_repeated) == (lost, repeated)


def test_another_token_or_end_is_wrong_and_a_cut_stream_is_compared_so_far() -> None:
    assert differences(seen_on_vllm([ids_chunk([1, 9, 3], "azc", finish="length")])).wrong
    assert differences(seen_on_vllm([ids_chunk([1, 2, 3], "abc", finish="stop")])).wrong
    assert not differences(seen_on_vllm([ids_chunk([1, 2], "ab")], End.CUT))


def test_without_token_ids_the_words_are_compared() -> None:
    def parts(*texts: str, end: str | None = None) -> list[bytes]:
        found = [{"choices": [{"index": 0, "text": text}]} for text in texts]
        found[-1]["choices"][0]["finish_reason"] = end
        return joined({0: [json.dumps(each).encode() for each in found]})[0]

    assert parts("a b", "c d", end="stop") == parts("a ", "bc d", end="stop")
    assert parts("a b", "c d") == [b"a", b"bc"], "the last word may be incomplete"


@pytest.mark.parametrize(
    ("kind", "one_at_a_time", "waits"),
    [
        (KillKind.WORKER, True, True),
        (KillKind.WORKER, False, False),
        (KillKind.GATEWAY, True, False),
    ],
)
@pytest.mark.asyncio
async def test_kills_of_workers_wait_until_all_replacements_serve(
    kind: KillKind, *, one_at_a_time: bool, waits: bool
) -> None:
    answers = iter([False, True])
    fleet: Any = SimpleNamespace(shape=usual_fleet(2), all_serve=lambda: next(answers))
    killer = Killer(fleet, None, 1.0, one_at_a_time)  # type: ignore[arg-type]
    waited = await killer.wait_until_all_serve(PlannedKill(kind, 0.0, 0.0, 1.0))
    assert waited == killer.waited_s
    assert (waited > 0) == waits


@pytest.mark.parametrize("options", [["--vllm"], ["--vllm", "--defaults", "--schedule"]])
def test_vllm_is_never_ignored(options: list[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(SystemExit, match="--vllm is for"):
        command.main(parser.parse_args(options))


def test_equal_seeds_plan_equal_kills_and_the_first_ones_are_of_all_kinds() -> None:
    kills = list(plan(7, 50, 4.0))
    assert kills == list(plan(7, 50, 4.0))
    assert kills != list(plan(8, 50, 4.0))
    assert {each.kind for each in kills[: len(KillKind)]} == set(KillKind)


def test_a_pause_is_the_silence_that_the_kill_began() -> None:
    arrivals = [0.0, 0.1, 0.2, 0.7, 0.8]
    assert silence_after(0.19, arrivals) == (0.2, 0.7)
    assert silence_after(0.75, arrivals) == (0.7, 0.8)
    assert silence_after(0.81, arrivals) is None


def test_a_pause_in_which_the_worker_was_stopped_counts_for_that_only() -> None:
    arrivals = [0.0, 0.1, 4.0, 4.1, 4.5]
    hits = [(KillKind.STOP, 0.1), (KillKind.GATEWAY, 0.12), (KillKind.WORKER, 4.1)]
    assert pauses(hits, arrivals, [Silence(0.1, 3.2)]) == [
        (KillKind.STOP, pytest.approx(3.9), 2),
        (KillKind.WORKER, pytest.approx(0.4), 1),
    ]


def test_events_may_be_split_anywhere() -> None:
    raw = b": a comment\n\nevent: chunk\nid: 3.1\ndata: {}\n\ndata: [DONE]\n\n"
    parser, events = SseParser(), []
    for n in range(len(raw)):
        events += parser.feed(raw[n : n + 1])
    assert events == [SseEvent("chunk", b"{}", "3.1"), SseEvent("", b"[DONE]", "")]
    assert parser.rest == b""


@pytest.mark.asyncio
async def test_the_undisturbed_answer_has_every_token_of_its_journal() -> None:
    undisturbed = Undisturbed()
    await undisturbed.start()
    try:
        served = await undisturbed.served(CLASSES)
        assert len(served) >= 24
        for each in served:
            request = make_request(each, random.Random(1), "tag", Mode.CALL)
            first, second = [await undisturbed.expected(request) for _ in range(2)]
            assert first.answer.chunks == second.answer.chunks
            assert first.answer.body == second.answer.body
            assert first.completion_tokens > 0
            if request.stream:
                assert first.answer.done
            else:
                assert first.answer.usage is not None
                assert first.answer.usage["completion_tokens"] == first.completion_tokens
    finally:
        undisturbed.close()


def test_every_control_finds_what_it_switches_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (controls.runner, "library"),
        (controls.runner, "script"),
        (controls.Detector, "run"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    for switch_off in controls.CONTROLS.values():
        switch_off()
