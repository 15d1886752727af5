"""Settings of the commands that call a gateway."""

from __future__ import annotations

from pydantic import Field, SecretStr

from shared.platform.settings import ProcessSettings


class ClientSettings(ProcessSettings):
    """Settings that only the command line reads."""

    url: str = Field(
        "",
        description="the gateway that commands call; empty: that of the `flotilla up` in the "
        "current folder, else http://127.0.0.1:8000; flotilla.yaml can't name it",
    )
    api_key: SecretStr = Field(
        SecretStr(""), description="the API key that commands send; empty: none"
    )
