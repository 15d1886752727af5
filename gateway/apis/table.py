"""The APIs of the gateway. To remove one, delete its folder, its tests and its two lines here."""

from __future__ import annotations

from gateway.apis.admin.routes import API as ADMIN
from gateway.apis.anthropic.routes import API as ANTHROPIC
from gateway.apis.audio.routes import API as AUDIO
from gateway.apis.batches.routes import API as BATCHES
from gateway.apis.files.routes import API as FILES
from gateway.apis.jobs.routes import API as JOBS
from gateway.apis.openai.routes import API as OPENAI
from gateway.apis.pooling.routes import API as POOLING
from gateway.apis.responses.routes import API as RESPONSES
from gateway.apis.torchserve.routes import API as TORCHSERVE
from gateway.apis.usage.routes import API as USAGE
from gateway.apis.webhooks.routes import API as WEBHOOKS
from gateway.description.api import Api

APIS: tuple[Api, ...] = (
    OPENAI,
    RESPONSES,
    ANTHROPIC,
    AUDIO,
    POOLING,
    FILES,
    BATCHES,
    WEBHOOKS,
    JOBS,
    ADMIN,
    USAGE,
    TORCHSERVE,
)
