"""Settings for the fields of requests: which are allowed, and how large they may be.

`shared/api/field_policy.py` applies them, in the gateway; workers read whether URLs are allowed.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, field_validator
from pydantic_settings import NoDecode


class FieldSettings(BaseModel):
    """Limits on single fields of a request's body."""

    allow_fields: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="fields that are refused unless they are named here, comma separated; * is all "
        "(NEEDS_PERMISSION in shared/api/field_policy.py)",
    )
    max_choices: int = Field(
        64, ge=1, le=1024, description="`n`; vLLM's own limit is VLLM_MAX_N_SEQUENCES"
    )
    max_logprobs: int = Field(
        20, ge=0, description="`logprobs` and the like; vLLM's own limit is --max-logprobs"
    )
    max_answer_bytes: int = Field(
        32 << 20,
        ge=1,
        description="bytes of the largest answer that a request may ask for: sequences x tokens x "
        "log probabilities, estimated (gateway/core/answer_size.py)",
    )
    max_answer_bytes_at_once: int = Field(
        8 << 20,
        ge=1,
        description="the same for log probabilities in an answer that is not streamed: vLLM makes "
        "8 MiB in about 2 s, in which its other answers wait",
    )
    max_stop_strings: int = Field(64, ge=0, description="strings in `stop` or `bad_words`")
    max_stop_chars: int = Field(1024, ge=1, description="characters of one of them")
    max_token_list: int = Field(1024, ge=0, description="tokens in `logit_bias`, `stop_token_ids`")
    max_tools: int = Field(128, ge=0, description="tools of one request")
    max_schema_values: int = Field(
        20_000, ge=1, description="values in the tools, or in the response format, of one request"
    )
    max_schema_chars: int = Field(262_144, ge=1, description="characters in the same")
    max_schema_depth: int = Field(64, ge=1, description="levels of nesting in the same")

    def allows(self, name: str) -> bool:
        """Whether requests may have a field that is refused by default."""
        return name in self.allow_fields or "*" in self.allow_fields

    @field_validator("allow_fields", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value
