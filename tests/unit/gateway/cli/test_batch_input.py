"""The check of `flotilla batch run`, what it sends, and the order of what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli.batch import batch_input
from gateway.cli.batch.batch_input import BatchInput

URL = "/v1/completions"


def full(custom_id: str = "a", **changes: object) -> str:
    line = {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"prompt": "x"}}
    return json.dumps(line | changes)


def written(folder: Path, *lines: str | bytes, end: bytes = b"\n") -> Path:
    path = folder / "in.jsonl"
    raw = [line if isinstance(line, bytes) else line.encode() for line in lines]
    path.write_bytes(end.join(raw))
    return path


def test_lines_are_sent_as_they_are(folder: Path) -> None:
    lines = [full(f"id-{n}", body={"prompt": "\u00fc" * n}) for n in range(9)]
    source = BatchInput(written(folder, *lines))
    checked = source.check()
    assert (checked.lines, checked.errors, checked.endpoint) == (9, [], URL)
    whole = b"".join(source.data())
    assert len(whole) == checked.bytes
    assert [json.loads(line) for line in whole.splitlines()] == [json.loads(each) for each in lines]


def test_a_line_that_is_only_a_body_is_completed(folder: Path) -> None:
    path = written(folder, '{"prompt": "x"}', "", '{"prompt": "y"}')
    source = BatchInput(path, URL)
    source.check()
    first, blank, second = b"".join(source.data()).splitlines()
    assert json.loads(first) == {
        "custom_id": "1", "method": "POST", "url": URL, "body": {"prompt": "x"}
    }  # fmt: skip
    assert blank == b"", "the numbers of lines in the gateway's errors are those of the input"
    assert json.loads(second)["custom_id"] == "3"
    assert BatchInput(path).check().endpoint == "/v1/chat/completions"


def test_a_model_for_all_lines(folder: Path) -> None:
    source = BatchInput(written(folder, full("a"), full("b", body={"model": "old"})), model="new")
    whole = b"".join(source.data())
    assert [json.loads(line)["body"]["model"] for line in whole.splitlines()] == ["new", "new"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n \n"])
def test_marks_of_other_systems(folder: Path, end: bytes) -> None:
    source = BatchInput(written(folder, b"\xef\xbb\xbf" + full("a").encode(), full("b"), end=end))
    assert (source.check().lines, source.check().errors) == (2, [])


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{", "invalid_json_line"),
        ("[]", "invalid_json_line"),
        ('{"a": NaN}', "invalid_json_line"),
        (b'{"a": "\xff"}', "invalid_json_line"),
        ("[" * 100_000, "invalid_json_line"),
        (full("b", body=[]), "invalid_json_line"),
        ('{"custom_id": "b"}', "missing_required_parameter"),
        (full(""), "invalid_custom_id"),
        (full("b" * 513), "invalid_custom_id"),
        (full("a"), "duplicate_custom_id"),
        (full("b", method="GET"), "invalid_method"),
        (full("b", url="/v1/embeddings"), "invalid_url"),
        (full("b", url=["x"]), "invalid_url"),
        (full("b", body={"stream": True}), "stream_not_supported"),
        ('{"prompt": "x", "stream": true}', "stream_not_supported"),
    ],
)
def test_what_no_batch_takes(folder: Path, line: str | bytes, code: str) -> None:
    (error,) = BatchInput(written(folder, full("a"), line)).check().errors
    assert (error.line, error.code) == (2, code)


def test_both_lines_of_a_duplicate_are_named(folder: Path) -> None:
    (error,) = BatchInput(written(folder, full("b"), full("a"), full("b"))).check().errors
    assert error.line == 3
    assert "line 1" in error.message


def test_a_file_of_nothing(folder: Path) -> None:
    assert [each.code for each in BatchInput(written(folder, "", " ")).check().errors] == [
        "empty_file"
    ]


def test_a_line_without_an_end_is_not_read_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_input, "MAX_LINE_BYTES", 200)
    long = full("a", body={"prompt": "x" * 1000})
    source = BatchInput(written(folder, full("1"), long, full("2"), long))
    checked = source.check()
    assert [(each.line, each.code) for each in checked.errors] == [
        (2, "line_too_large"), (4, "line_too_large")
    ]  # fmt: skip
    assert checked.lines == 2


def test_more_lines_than_a_batch_takes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_input, "MOST_LINES", 2)
    path = written(folder, full("a"), "", full("b"))
    assert BatchInput(path).check().errors == []
    (error,) = BatchInput(written(folder, full("a"), "", full("b"), full("c"))).check().errors
    assert (error.line, error.code) == (4, "too_many_lines")
    chosen = BatchInput(path).only({"c"}.__contains__)
    assert chosen.check().errors == []


def test_the_first_hundred_errors(folder: Path) -> None:
    assert len(BatchInput(written(folder, *["{"] * 300)).check().errors) == 100


def test_only_wanted_lines_are_sent(folder: Path) -> None:
    source = BatchInput(written(folder, *(full(str(n)) for n in range(9)))).only(
        {"3", "7"}.__contains__
    )
    checked = source.check()
    assert checked.lines == 2
    whole = b"".join(source.data())
    assert [json.loads(line)["custom_id"] for line in whole.splitlines()] == ["3", "7"]
