"""Ids of responses and conversations (OpenAI's APIs).

A response is a job: its id has the job's digits. A conversation lies in a shard, as the jobs of its
responses do.
"""

from __future__ import annotations

import os
import re

from shared.job.job import shard_of

CONVERSATION_PREFIX = "conv_"
_CONVERSATION = re.compile(r"conv_([0-9a-f]{3})[0-9a-f]{32}")

_RESPONSE, _JOB = "resp_", "job_"


def response_id(job_id: str) -> str:
    """The id of the response that this job is."""
    return _RESPONSE + job_id.removeprefix(_JOB)


def job_id_of(response: str) -> str | None:
    """The id of the job that is this response; None if it is no response's id."""
    if not response.startswith(_RESPONSE):
        return None
    job_id = _JOB + response.removeprefix(_RESPONSE)
    return None if shard_of(job_id) is None else job_id


def new_conversation_id(shard: int) -> str:
    """`conv_`, three hex digits that name the shard, 128 random bits."""
    return f"{CONVERSATION_PREFIX}{shard:03x}{os.urandom(16).hex()}"


def shard_of_conversation(conversation: str) -> int | None:
    """The shard that holds the conversation; None if it is no conversation's id."""
    match = _CONVERSATION.fullmatch(conversation)
    return int(match[1], 16) if match else None
