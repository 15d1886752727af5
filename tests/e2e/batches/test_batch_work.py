"""Whole batches on simulated workers: answers, refusals, cancelling, expiry, crashes."""

from __future__ import annotations

from shared.batches.batch import BatchStatus
from tests.e2e.batches.conftest import Batches, line


async def test_each_line_has_its_answer(batches: Batches) -> None:
    data = b"\n".join(line(f"q{n}") for n in range(300)) + b"\n"
    batch = await batches.run(await batches.create(data))
    assert batch.status is BatchStatus.COMPLETED
    assert (batch.total, batch.completed, batch.failed) == (300, 300, 0)
    lines = await batches.file_lines(batch.output_file_id)
    assert sorted(each["custom_id"] for each in lines) == sorted(f"q{n}" for n in range(300))
    usages = [each["response"]["body"]["usage"] for each in lines]
    assert batch.usage.output_tokens == sum(each["completion_tokens"] for each in usages) == 600
    assert batch.usage.input_tokens == sum(each["prompt_tokens"] for each in usages)
    assert batch.error_file_id == ""
    assert batch.model == "simulated"
