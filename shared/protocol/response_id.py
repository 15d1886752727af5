"""Ids of responses (OpenAI's Responses API). A response is a job: its id has the job's digits."""

from __future__ import annotations

from shared.protocol.job import shard_of

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
