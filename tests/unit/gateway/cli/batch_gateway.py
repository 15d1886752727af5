"""A gateway with files and batches in memory, on a real socket: each line is answered at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.harness.http_stub import Answer, HttpStub, Request
from tests.unit.gateway.cli.samples import NOW


def _file_in(form: bytes) -> bytes:
    boundary, _, rest = form.partition(b"\r\n")
    _, _, of_file = rest.partition(b'; filename="')
    return of_file.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n" + boundary + b"--\r\n")


@dataclass
class BatchGateway(HttpStub):
    """Takes files and batches; a test says which lines fail, and cuts connections off."""

    fails: Callable[[str], bool] = lambda custom_id: False
    polls: int = 0
    """A batch has not ended for so many more readings."""
    cuts: dict[str, int] = field(default_factory=dict)
    """`METHOD /path` -> how many of its requests are cut off."""
    files: dict[str, bytes] = field(default_factory=dict)
    batches: list[dict[str, Any]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def answer(self, request: Request) -> Answer:
        line = f"{request.method} {request.path.partition('?')[0]}"
        self.requests.append(line)
        status, answer = self._answer(line, request.body)
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        headers = {"content-type": "x/y", "content-length": str(len(data))}
        name = re.sub(r"(file|batch)[-_]\w+", "ID", line)
        if self.cuts.get(name, 0) > 0:
            self.cuts[name] -= 1
            data = data[: len(data) // 2]
        return Answer(data, status, headers)

    def _answer(self, line: str, body: bytes) -> tuple[int, Any]:
        match line.strip("/").split("/"):
            case ["POST ", "v1", "files"]:
                file_id = f"file-{len(self.files) + 1}"
                self.files[file_id] = _file_in(body)
                return 200, self._file(file_id)
            case ["POST ", "v1", "batches"]:
                return 200, self._batch(json.loads(body))
            case ["GET ", "v1", "batches"]:
                return 200, {"object": "list", "data": self.batches[::-1], "has_more": False}
            case ["GET ", "v1", "batches", batch_id]:
                batch = next(each for each in self.batches if each["id"] == batch_id)
                if self.polls:
                    self.polls -= 1
                    batch = batch | {"status": "in_progress"}
                return 200, batch
            case ["GET ", "v1", "files", file_id] if file_id in self.files:
                return 200, self._file(file_id)
            case ["DELETE ", "v1", "files", file_id] if file_id in self.files:
                del self.files[file_id]
                return 200, {"id": file_id, "object": "file", "deleted": True}
            case ["GET ", "v1", "files"]:
                return 200, {"object": "list", "data": [self._file(each) for each in self.files]}
            case ["GET ", "v1", "files", file_id, "content"]:
                return 200, self.files[file_id]
        return 404, {"error": {"message": f"no {line}", "code": "not_found"}}

    def _file(self, file_id: str) -> dict[str, Any]:
        return {
            "id": file_id,
            "bytes": len(self.files[file_id]),
            "purpose": "batch",
            "created_at": NOW,
            "filename": "in.jsonl",
        }

    def _batch(self, request: dict[str, Any]) -> dict[str, Any]:
        number = len(self.batches) + 1
        lines = [json.loads(each) for each in self.files[request["input_file_id"]].splitlines()]
        ids = [each["custom_id"] for each in lines]
        good = [each for each in ids if not self.fails(each)]
        bad = [each for each in ids if self.fails(each)]
        made = {f"file-o{number}": reversed(good), f"file-e{number}": reversed(bad)}
        for name, of in made.items():
            rows = [json.dumps({"custom_id": each, "response": {}, "batch": number}) for each in of]
            self.files[name] = "".join(f"{row}\n" for row in rows).encode()
        batch = {
            **request,
            "id": f"batch_{number}",
            "status": "completed",
            "created_at": NOW,
            "errors": None,
            "output_file_id": f"file-o{number}" if good else None,
            "error_file_id": f"file-e{number}" if bad else None,
            "request_counts": {"total": len(ids), "completed": len(good), "failed": len(bad)},
            "usage": {"input_tokens": 10, "output_tokens": 20},
        }
        self.batches.append(batch)
        return batch
