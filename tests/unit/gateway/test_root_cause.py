"""The root cause of a failed start, found in logs as vLLM's processes write them."""

from __future__ import annotations

from pathlib import Path

from gateway.launcher import root_cause

P = "(EngineCore pid=29886) ERROR 11-30 02:53:59 [core.py:1100] "
WORKER = """\
2026-11-30T02:56:13.380027Z [info     ] w1-7eb8: loading a [flotilla.worker]
Traceback (most recent call last):
  File "worker/core/worker.py", line 106, in run
    await self._engine.start()
          ^^^^^^^^^^^^^^^^^^^^
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
2026-11-30T02:56:56.987320Z [error    ] the worker failed: RuntimeError('...') [flotilla.worker]
"""
ENGINE = f"""\
{P}EngineCore failed to start.\r
{P}Traceback (most recent call last):\r
{P}  File "vllm/v1/engine/core.py", line 1091, in run_engine_core\r
{P}ValueError: (32.0 GiB KV cache is needed\r
Process EngineCore:
Traceback (most recent call last):
  File "multiprocessing/process.py", line 314, in _bootstrap
ValueError: (32.0 GiB KV cache is needed
"""


def found(text: str) -> list[str]:
    return root_cause.in_lines(text.splitlines())


def test_the_engines_error_is_found_behind_its_workers() -> None:
    assert found(ENGINE + WORKER) == ["ValueError: (32.0 GiB KV cache is needed"]


def test_of_two_processes_that_write_at_once_one_line_is_enough() -> None:
    engine, worker = ENGINE.splitlines(), WORKER.splitlines()
    mixed = [line for pair in zip(engine, [*worker, ""], strict=False) for line in pair]
    assert root_cause.in_lines(mixed)[0] == "ValueError: (32.0 GiB KV cache is needed"


def test_the_deepest_cause_stands_before_what_it_led_to() -> None:
    text = (
        "Traceback (most recent call last):\n  File a\nsocket.gaierror: [Errno -2] no name\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n  File b\nConnectionError: no hub\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File c\nOSError: can't load the model\n"
    )
    assert found(text) == ["socket.gaierror: [Errno -2] no name", "OSError: can't load the model"]
    engine = "".join(f"{P}{line}\r\n" for line in text.splitlines())
    assert found(engine + WORKER) == found(text)


def test_an_error_may_have_several_lines() -> None:
    text = (
        "Traceback (most recent call last):\n  File a\n"
        "pydantic.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, max_model_len (9) is too long [type=value_error]\n"
        '  File "of another process"\n'
    )
    (line,) = found(text)
    assert line.endswith(
        "ModelConfig Value error, max_model_len (9) is too long [type=value_error]"
    )


def test_what_a_worker_refuses_is_its_error() -> None:
    assert found("noise\nflotilla worker: the model does not fit\n") == ["the model does not fit"]
    assert found("noise: 3\n  more\n") == []


def test_only_the_last_run_is_read(tmp_path: Path) -> None:
    log = tmp_path / "worker-1.log"
    assert root_cause.find(log, 0) == []
    log.write_text(ENGINE + WORKER)
    before = log.stat().st_size
    assert root_cause.find(log, 0) == found(ENGINE)
    assert root_cause.find(log, before) == []


def test_errors_are_alike_whatever_their_numbers() -> None:
    assert root_cause.kind(["A: 3.2 GiB of 9"]) == root_cause.kind(["A: 3.14 GiB of 10"])
    assert root_cause.kind(["A: at 0x7fa"]) == root_cause.kind(["A: at 0x80b"])
    assert root_cause.kind(["A: 3 GiB"]) != root_cause.kind(["B: 3 GiB"])
    assert not root_cause.kind([])
