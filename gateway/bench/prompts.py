"""The prompts of a benchmark: random words of a wanted length, or the lines of a file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Common words: most tokenizers have one token for each.
_WORDS = """
about after again along back been before being between both came come could day did down each
even every first found from good great had hand have here high home house how into just know
large last left life light line little live long made make man many may more most much name
need never new next night number off old once only other our out over own part people place
point put read right room said same school side small some sound still such take tell than
that them then there these thing think this thought three through time together took two
under until use very want water way well went were what when where which while white who why
will with without word work world would write year young
""".split()  # noqa: SIM905


class PromptsError(Exception):
    """A file has no usable prompts; the message names the line."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request sends."""

    text: str
    output_tokens: int
    """The most tokens of its answer."""


@dataclass(frozen=True, slots=True)
class PromptLength:
    """How many tokens a prompt of so many words has, as two answers have shown.

    A chat template adds tokens that do not depend on the text.
    """

    template_tokens: float = 0.0
    tokens_per_word: float = 1.0

    @classmethod
    def measured(cls, short: tuple[int, int], long: tuple[int, int]) -> PromptLength:
        """From the (words, tokens) of two prompts of different lengths."""
        per_word = (long[1] - short[1]) / (long[0] - short[0])
        if per_word <= 0:  # an engine that does not count
            return cls()
        return cls(max(0.0, short[1] - short[0] * per_word), per_word)

    def words(self, tokens: int) -> int:
        """The number of words that gives about so many tokens; at least 1."""
        return max(1, round((tokens - self.template_tokens) / self.tokens_per_word))


def random_text(n_words: int, seed: object) -> str:
    """Random words; another seed gives another beginning, so that no prefix cache helps."""
    draw = random.Random(f"{seed}")
    return " ".join(draw.choices(_WORDS, k=n_words))


def random_prompts(n_words: int, output_tokens: int, seed: int) -> Iterator[Prompt]:
    """Different prompts without end, each of `n_words` words."""
    index = 0
    while True:
        yield Prompt(random_text(n_words, f"{seed}-{index}"), output_tokens)
        index += 1


def read_prompts(path: Path, output_tokens: int | None) -> list[Prompt]:
    """The lines of a JSONL file, as vLLM's dataset `custom`: `prompt`, `output_tokens`.

    `output_tokens` holds for all lines if it is given. Raises PromptsError, OSError.
    """
    prompts = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            n_tokens = entry["output_tokens"] if output_tokens is None else output_tokens
            prompts.append(Prompt(str(entry["prompt"]), int(n_tokens)))
        except (ValueError, TypeError, LookupError) as error:
            wanted = '{"prompt": "...", "output_tokens": 64}'
            raise PromptsError(f"{path}, line {number}: each line must be {wanted}") from error
    if not prompts:
        raise PromptsError(f"{path} has no prompts")
    return prompts
