"""Where files are stored: the same for all processes that read or write them."""

from __future__ import annotations

from pydantic import Field

from shared.platform.settings import ProcessSettings


class StorageSettings(ProcessSettings):
    """Settings of the processes that use the storage."""

    storage_url: str = Field(
        "",
        description="where files and the outputs of batches are: a folder, or s3://bucket/prefix, "
        "gs:// or az://, the same for gateways and maintenance; empty: none are stored. A bucket's "
        "credentials are those of its cloud's own tools (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...)",
    )
