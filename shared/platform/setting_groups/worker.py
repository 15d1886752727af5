"""Settings of a worker process."""

from __future__ import annotations

import re

from pydantic import BaseModel, Field, field_validator

_WORKER_ID = re.compile(r"^[A-Za-z0-9_.-]{1,64}$")


class WorkerSettings(BaseModel):
    """Settings that only a worker reads."""

    worker_id: str = Field("", description="unique in the fleet; empty: made of the host's name")
    worker_host: str = Field("127.0.0.1", description="address for health and metrics")
    worker_port: int = Field(
        8100, ge=0, le=65535, description="port for health and metrics; 0: any free one"
    )
    startup_timeout_s: float = Field(
        3600.0, gt=0, description="a worker whose model has not loaded after this time ends"
    )
    drain_deadline_s: float = Field(
        30.0, ge=0, description="time for running jobs to end after SIGTERM"
    )
    kv_high_watermark: float = Field(
        0.95, gt=0, le=1, description="share of the KV cache above which no job is claimed"
    )
    engine_stall_s: float = Field(
        120.0,
        gt=0,
        description="an engine with work that makes no step for this time counts as hung; after "
        "10 s, or 20 times its longest step of late, unless it warms up or has a longer prompt",
    )
    grammar_timeout_s: float = Field(
        4.0,
        gt=0,
        le=4,
        description="CPU time for compiling one request's grammar (schema, regex, choice, ...)",
    )
    grammar_memory_bytes: int = Field(512 << 20, ge=1 << 20, description="memory for the same")
    validation_timeout_s: float = Field(
        0.3,
        gt=0,
        le=2,
        description="CPU time for reading one request's body, in which all other answers wait",
    )
    max_prompt_logprobs: int = Field(
        65_536, ge=0, description="a prompt's tokens times `prompt_logprobs`, in one request"
    )

    @field_validator("worker_id")
    @classmethod
    def _check_worker_id(cls, value: str) -> str:
        if value and not _WORKER_ID.fullmatch(value):
            raise ValueError("letters, digits, '_', '.', '-'; at most 64")
        return value


class SimulatedEngineSettings(BaseModel):
    """Settings of the simulated engine, which only load and fault tests use."""

    sim_max_num_seqs: int = Field(256, ge=1, description="sequences in one step: its slots")
    sim_kv_tokens: int = Field(1 << 20, ge=1, description="tokens that its KV cache holds")
    sim_max_model_len: int = Field(8192, ge=1, description="tokens of a prompt and its answer")
    sim_prefill_us_per_token: float = Field(
        20.0, ge=0, description="microseconds of prefill for one token of a prompt"
    )
    sim_step_ms: float = Field(10.0, ge=0, description="shortest step")
    sim_step_us_per_seq: float = Field(250.0, ge=0, description="step time per running sequence")
    sim_max_loras: int = Field(4, ge=0, description="LoRA adapters in one step; 0: takes none")
    sim_faults: str = Field(
        "", description="faults by name, see worker/engines/simulated/engine_faults.py"
    )
