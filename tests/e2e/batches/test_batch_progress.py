"""What a batch's routes tell while it runs: its events and its output."""

from __future__ import annotations

import json

from openai import OpenAI

from tests.harness.client import CHAT, batch_line, http
from tests.harness.fleet import Process
from tests.harness.waiting import wait_for

GATEWAY: dict[str, str] = {}


def test_what_is_done_so_far(fleet: Process) -> None:
    client = OpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0)
    lines = [batch_line("quick"), batch_line("slow", max_tokens=8000, ignore_eos=True)]
    file = client.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    url = f"{fleet.url}/v1/batches/{batch.id}"

    def output() -> str:
        return http.get(f"{url}/output").text

    wait_for(output, "the first answer is committed")
    events = []
    with http.stream("GET", f"{url}/events", timeout=60) as stream:
        for text in stream.iter_lines():
            if text.startswith("event: "):
                events.append(text.removeprefix("event: "))
            elif text.startswith("data: "):
                data = json.loads(text.removeprefix("data: "))
            if events == ["progress", "progress"]:
                assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
                assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    assert set(events[:-1]) == {"progress"}
    assert (events[-1], data["status"], data["id"]) == ("cancelled", "cancelled", batch.id)
    assert data["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    client.close()
