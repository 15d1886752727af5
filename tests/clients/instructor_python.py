"""instructor over OpenAI's SDK, unmodified."""

from __future__ import annotations

from typing import Any, Literal

import instructor
from checks import KEY, MODEL, QUESTION, V1, check, main
from openai import OpenAI
from pydantic import BaseModel

MESSAGES: Any = [{"role": "user", "content": QUESTION}]


class Boat(BaseModel):
    """What answers are parsed into."""

    colour: Literal["red", "blue"]
    sails: bool


def boat(mode: instructor.Mode) -> None:
    """Ask for a boat in this mode."""
    client = instructor.from_openai(
        OpenAI(base_url=V1, api_key=KEY, timeout=120, max_retries=0), mode=mode
    )
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_model=Boat, max_tokens=300, max_retries=0
    )
    assert isinstance(answer, Boat)


@check("tools")
def tools() -> None:
    boat(instructor.Mode.TOOLS)


@check("JSON schema")
def json_schema() -> None:
    boat(instructor.Mode.JSON_SCHEMA)


main()
