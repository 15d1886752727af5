"""pydantic-ai over OpenAI's chat and Responses APIs and Anthropic's, unmodified."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

from checks import BASE, KEY, MODEL, QUESTION, V1, check, main, raises
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.exceptions import ModelHTTPError, OutputTokenLimitExceeded
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

openai = OpenAIProvider(base_url=V1, api_key=KEY)
chat = OpenAIChatModel(MODEL, provider=openai)
SHORT: Any = {"max_tokens": 300}


class Boat(BaseModel):
    """What answers are parsed into."""

    colour: Literal["red", "blue"]
    sails: bool


@check("agent with text")
def text() -> None:
    assert Agent(chat, model_settings=SHORT).run_sync(QUESTION).output


@check("agent, streamed")
async def stream() -> None:
    async with Agent(chat, model_settings=SHORT).run_stream(QUESTION) as result:
        assert "".join([part async for part in result.stream_text(delta=True)])


@check("agent with structured output, by tool and by schema")
def structured() -> None:
    for kind in (Boat, NativeOutput(Boat)):
        assert isinstance(asked_for(kind), Boat)


def asked_for(kind: Any) -> Any:
    """An answer of this kind. Rarely the demo model writes a tool's call as text without an end:
    then it is asked once more."""
    agent = Agent(chat, output_type=kind, model_settings=SHORT)
    with contextlib.suppress(OutputTokenLimitExceeded):
        return agent.run_sync(QUESTION).output
    return agent.run_sync(QUESTION).output


@check("agent over the Responses API")
def responses() -> None:
    model = OpenAIResponsesModel(MODEL, provider=openai)
    assert Agent(model, model_settings=SHORT).run_sync(QUESTION).output


@check("agent over Anthropic's API")
def messages() -> None:
    model = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=BASE, api_key=KEY))
    assert Agent(model, model_settings=SHORT).run_sync(QUESTION).output


@check("errors")
def errors() -> None:
    wrong = OpenAIChatModel("no-such-model", provider=openai)
    error = raises(ModelHTTPError, lambda: Agent(wrong).run_sync(QUESTION))
    assert error.status_code == 404


main()
