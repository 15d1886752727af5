"""Which addresses webhooks may call: the same for gateways and maintenance."""

from __future__ import annotations

from pydantic import Field, field_validator

from shared.platform.settings import ProcessSettings, SettingList
from shared.webhooks.address_check import AllowedAddresses


class WebhookSettings(ProcessSettings):
    """Settings of the processes that call webhooks."""

    webhook_allow: SettingList = Field(
        (),
        description="hosts and networks (10.1.0.0/16) that webhooks may call although they are not "
        "public, by http, too; without them only public addresses, by https. The same for gateways "
        "and maintenance",
    )

    @field_validator("webhook_allow")
    @classmethod
    def _check_allow(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        AllowedAddresses.of(words)
        return words
