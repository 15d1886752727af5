"""Fetches the files of a batch, again if a connection is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from gateway.cli.batch.batch_progress import ENDED
from gateway.cli.batch.run_state import RunState, errors_path
from gateway.cli.exit_codes import CommandError
from gateway.cli.gateway_client import GatewayClient, Patience

_CHUNK_BYTES = 1 << 18


def download(client: GatewayClient, file_id: str, target: Path) -> None:
    """Write a file's content to `target`."""
    download_from(client, f"/v1/files/{file_id}/content", target)


def download_from(client: GatewayClient, path: str, target: Path) -> None:
    """Write the whole answer of a path to `target`, or nothing."""
    part, patience = target.with_name(f"{target.name}.part"), Patience(client)
    while True:
        try:
            with client.exchange("GET", path) as answer, part.open("wb") as file:
                for chunk in answer.iter_bytes(_CHUNK_BYTES):
                    file.write(chunk)
            break
        except CommandError as error:
            patience.wait(error)
    part.replace(target)


def fetch(client: GatewayClient, batch: dict[str, Any], output: Path) -> None:
    """Write both files of a batch; one that has not ended: what there is of them."""
    errors = errors_path(output)
    if batch["status"] not in ENDED:
        path = f"/v1/batches/{batch['id']}"
        download_from(client, f"{path}/output", output)
        download_from(client, f"{path}/errors", errors)
        return
    for file_id, target in ((batch["output_file_id"], output), (batch["error_file_id"], errors)):
        if file_id:
            download(client, file_id, target)
    if not batch["output_file_id"]:
        output.write_bytes(b"")
    if not batch["error_file_id"]:
        errors.unlink(missing_ok=True)


def fetch_run(client: GatewayClient, state: RunState, batch: dict[str, Any], output: Path) -> None:
    """The results of a run: as `fetch`, but those of a retry are added to the ones before."""
    if state.is_retry:
        _add(client, state, batch, output)
    else:
        fetch(client, batch, output)
    state.batch = batch
    state.save()


def _add(client: GatewayClient, state: RunState, batch: dict[str, Any], output: Path) -> None:
    """Add the answers of a retry; its errors replace the ones before."""
    new = output.with_name(f"{output.name}.retried")
    fetch(client, batch, new)
    with output.open("ab") as file, new.open("rb") as added:
        file.truncate(state.kept_bytes)  # an earlier try may have added a part of them
        shutil.copyfileobj(added, file)
    if errors_path(new).exists():
        errors_path(new).replace(errors_path(output))
    else:
        errors_path(output).unlink(missing_ok=True)
    new.unlink()
