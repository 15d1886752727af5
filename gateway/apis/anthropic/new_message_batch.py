"""Makes a batch of a body: its requests become a file, which maintenance runs as that of any batch.

The file has a purpose of its own, so that it is in no list of files. It expires with the batch.
"""

from __future__ import annotations

from gateway.apis.anthropic.batch_requests import ENDPOINT, BatchRequests
from gateway.apis.anthropic.message_batch import KEPT_S, WINDOW_S
from gateway.core.context import Gateway
from gateway.core.incoming import Incoming
from gateway.core.rate_limiter import take_request
from gateway.core.receiver import quota_of
from gateway.files.files import Files
from gateway.http.body_parts import BodyParts
from shared.batches.batch import MAX_OPEN, Batch, BatchStatus, new_message_batch_id
from shared.batches.line_check import MOST_LINE_BYTES
from shared.files.stored_file import Purpose, Segment, StoredFile, file_blob, new_file_id
from shared.job.errors import FlotillaError
from shared.store.redis.batch_records import BatchRecords


async def new_message_batch(gateway: Gateway, sent: Incoming, body: BodyParts) -> Batch:
    """Store the requests and the batch. Raises what BatchRequests, Files and BatchRecords raise."""
    files, quota, tenant = gateway.of(Files), quota_of(gateway), sent.tenant
    await files.ready()
    await take_request(gateway, sent.key)
    await files.records.check_room(tenant, quota)
    requests = BatchRequests(min(gateway.settings.max_body_bytes, MOST_LINE_BYTES))
    batch_id, file_id = new_message_batch_id(), new_file_id()
    blob, made = file_blob(file_id), []

    async def keep(n_bytes: int) -> None:
        now_s = await files.records.now_s()
        batch = Batch(
            id=batch_id,
            tenant=tenant,
            endpoint=ENDPOINT,
            input_file_id=file_id,
            window_s=WINDOW_S,
            completion_window="24h",
            metadata=None,
            output_ttl_s=KEPT_S,  # from their creation on, so for longer than they can be fetched
            created_at=now_s,
            status=BatchStatus.IN_PROGRESS,  # what is checked of a file has been checked
            times={BatchStatus.IN_PROGRESS: now_s},
            total=requests.total,
            model=requests.model,
            key=sent.key.id,
        )
        segments = (Segment(blob, n_bytes),)
        await files.records.add(
            StoredFile(
                file_id, tenant, f"{batch_id}.jsonl", Purpose.MESSAGE_BATCH, now_s,
                batch.expires_at, segments,
            ),
            *quota,
        )  # fmt: skip
        try:
            await BatchRecords(gateway.queue).create(batch, MAX_OPEN)
        except FlotillaError:
            await files.records.delete(tenant, file_id)
            raise
        made.append(batch)

    await files.store_blob(blob, requests.lines(body), keep)
    return made[0]
