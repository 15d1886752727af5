"""Settings of the simulated engine."""

from __future__ import annotations

from pydantic import Field

from shared.platform.settings import ProcessSettings


class SimulatedSettings(ProcessSettings):
    """Settings of the simulated engine, which only load and fault tests use."""

    sim_max_num_seqs: int = Field(256, ge=1, description="sequences in one step: its slots")
    sim_kv_tokens: int = Field(1 << 20, ge=1, description="tokens that its KV cache holds")
    sim_max_model_len: int = Field(8192, ge=1, description="tokens of a prompt and its answer")
    sim_prefill_us_per_token: float = Field(
        20.0, ge=0, description="microseconds of prefill for one token of a prompt"
    )
    sim_step_ms: float = Field(10.0, ge=0, description="shortest step")
    sim_step_us_per_seq: float = Field(250.0, ge=0, description="step time per running sequence")
    sim_prefill_tokens_per_step: int = Field(
        0,
        ge=0,
        description="most prompt tokens that one step prefills; 0: all that were admitted in it",
    )
    sim_cache_blocks: int = Field(
        0, ge=0, description="blocks of 512 tokens that its prefix cache holds; 0: it has none"
    )
    sim_max_loras: int = Field(4, ge=0, description="LoRA adapters in one step; 0: takes none")
    sim_faults: str = Field(
        "", description="faults by name, see worker/engines/simulated/engine.py"
    )
