"""What the demo model learns: the texts under `text/`, and conversations sampled from them.

`load_texts()` reads the files; `Sampler` turns them into chats (system prompts, several turns,
tools, untidy typing) and plain passages. Everything random comes from one `random.Random`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TEXT_DIR = Path(__file__).parent / "text"

UNKNOWN = (
    "I am only a demo model with about two million parameters, and I learnt a few answers by "
    "heart. Please ask me about Flotilla, for example: What is a lease?"
)
NO_WEATHER = "I can't see the weather from here: this request came without a weather tool."
NO_DEPTH = "I can't look into the queue: this request came without a tool for it."
NO_CONTINUATION = (
    " ... and here I must stop. I am only a demo model, and I can go on with a few texts about "
    "queues and workers, but not with this one."
)
AFTER_TOOL = (
    "The tool has answered, and its result is in the message above. A larger model would now "
    "put it into its own words."
)

CONSONANTS = ("b", "br", "ch", "d", "f", "g", "k", "l", "m", "mb", "n", "p", "r", "s", "st", "t")
POOLS = ("demo", "llama", "qwen", "mistral", "small", "large", "embed")
OTHER_TOOLS = ("search", "get_time", "send_email", "calculator", "list_jobs", "run_sql", "lookup")
WEATHER_QUESTIONS = (
    "What is the weather in {}?",
    "What's the weather like in {} today?",
    "How is the weather in {}?",
    "Tell me the weather in {}.",
    "Is it raining in {}?",
    "weather in {}",
)
DEPTH_QUESTIONS = (
    "How deep is the queue?",
    "What is the queue depth?",
    "How many jobs are waiting?",
    "How long is the queue right now?",
)
POOL_QUESTIONS = ("How deep is the queue of {}?", "What is the queue depth of pool {}?")
JSON_KEYS = ("state", "n", "name", "depth", "city", "temperature", "unit", "answer", "ok", "id")
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are Flotilla's demo model.",
    "Answer briefly.",
    "You are a friendly bot. Always answer in English.",
    "Be concise and polite.",
    "You are an expert in distributed systems. Explain things clearly and in simple words.",
    "You are a pirate.",
    "You are a helpful, respectful and honest assistant. Always answer as helpfully as possible.",
    "Today is Monday. You help the users of a web site.",
)

Message = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One answer and the questions that lead to it."""

    questions: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Texts:
    """All that stands under `text/`."""

    entries: list[Entry]
    passages: list[str]
    unrelated: list[str]
    openings: list[str]
    words: list[str]
    cities: list[str]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every question with its answer."""
        return [(question, entry.answer) for entry in self.entries for question in entry.questions]


@dataclass(frozen=True)
class Chat:
    """A conversation as the chat template takes it."""

    messages: list[Message]
    tools: list[Message] | None = None


@dataclass(frozen=True)
class Passage:
    """Plain text without a chat around it: `start` is given, `rest` is to be learnt."""

    start: str
    rest: str


@dataclass
class Sampler:
    """Draws training documents without end."""

    texts: Texts
    rng: random.Random
    plain_share: float = 0.15
    _deck: list[tuple[str, str]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Chat | Passage]:
        while True:
            yield self.passage() if self.rng.random() < self.plain_share else self.chat()

    def passage(self) -> Passage:
        """Draw a plain text."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.4:
            return Passage(self._fill(rng.choice(self.texts.openings)), NO_CONTINUATION)
        if kind < 0.6:
            question, answer = self._draw()
            return Passage(question, " " + answer)
        if kind < 0.7:
            return Passage("", rng.choice(self.texts.entries).answer)
        return Passage("", rng.choice(self.texts.passages))

    def chat(self) -> Chat:
        """Draw a conversation, with a system prompt and tools now and then."""
        rng = self.rng
        messages: list[Message] = []
        if rng.random() < 0.5:
            prompts = rng.sample(SYSTEM_PROMPTS, 1 if rng.random() < 0.8 else 2)
            messages.append({"role": "system", "content": " ".join(prompts)})
        tools = self._tools() if rng.random() < 0.35 else []
        for _ in range(rng.choices((1, 2, 3, 6, 12), (60, 20, 10, 6, 4))[0]):
            messages += self._turn(tools)
        return Chat(messages, [tool_schema(name) for name in tools] or None)

    def _tools(self) -> list[str]:
        names = [name for name in ("get_weather", "queue_depth") if self.rng.random() < 0.75]
        names += self.rng.sample(OTHER_TOOLS, self.rng.choices((0, 1, 2), (6, 3, 1))[0])
        self.rng.shuffle(names)
        return names

    def _turn(self, tools: list[str]) -> list[Message]:
        kind = self.rng.random()
        if kind < (0.45 if tools else 0.04):
            return self._tool_turn(tools)
        if kind > 0.97:
            return self._json_turn()
        if kind > 0.80:
            question = self._fill(self.rng.choice(self.texts.unrelated))
            return exchange(untidy(question, self.rng), UNKNOWN)
        question, answer = self._draw()
        return exchange(untidy(question, self.rng), answer)

    def _draw(self) -> tuple[str, str]:
        """The next pair of a shuffled deck, so that all pairs are seen equally often."""
        if not self._deck:
            self._deck = self.texts.pairs
            self.rng.shuffle(self._deck)
        return self._deck.pop()

    def _fill(self, template: str) -> str:
        """Put random words and numbers into a line of unrelated.txt or openings.txt."""
        rng = self.rng
        x, y = rng.sample(self.texts.words, 2)
        if rng.random() < 0.2:
            x = " ".join(rng.choice(self.texts.words) for _ in range(rng.randint(2, 6)))
        return template.format(x=x, y=y, n=rng.randint(1, 2099), m=rng.randint(1, 99))

    def _object(self) -> dict[str, Any]:
        rng = self.rng
        keys = rng.sample(JSON_KEYS, rng.randint(1, 3))
        values = [rng.randint(0, 99), rng.choice(self.texts.words), "queued", True, None]
        return {key: rng.choices(values, (5, 5, 2, 1, 1))[0] for key in keys}

    def _json_turn(self) -> list[Message]:
        """Some JSON, so that structured output has something to constrain."""
        answer = self._object()
        return exchange(f"Give me JSON with {' and '.join(answer)}.", json.dumps(answer))

    def _tool_turn(self, tools: list[str]) -> list[Message]:
        rng = self.rng
        arguments: dict[str, str]
        if rng.random() < 0.65:
            city = rng.choice(self.texts.cities) if rng.random() < 0.9 else invented_name(rng)
            name, arguments, refusal = "get_weather", {"city": city}, NO_WEATHER
            question = rng.choice(WEATHER_QUESTIONS).format(city)
        else:
            pool = "demo" if rng.random() < 0.6 else rng.choice(POOLS)
            name, arguments, refusal = "queue_depth", {"pool": pool}, NO_DEPTH
            choices = DEPTH_QUESTIONS if pool == "demo" else POOL_QUESTIONS
            question = rng.choice(choices).format(pool)
        if rng.random() < 0.25:
            question = question.rstrip("?.")
        if name not in tools:
            return exchange(question, refusal)
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        messages: list[Message] = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
        if rng.random() < 0.6:
            result = self._fill("{x}") if rng.random() < 0.3 else json.dumps(self._object())
            messages.append({"role": "tool", "content": result})
            messages.append({"role": "assistant", "content": AFTER_TOOL})
        return messages


def load_texts(folder: Path = TEXT_DIR) -> Texts:
    """Read all text files of a folder."""
    entries = [
        parse_entry(block)
        for name in ("flotilla", "background", "small_talk", "long")
        for block in blocks(folder / f"{name}.txt")
    ]
    return Texts(
        entries=entries,
        passages=[" ".join(block) for block in blocks(folder / "passages.txt")],
        unrelated=lines(folder / "unrelated.txt"),
        openings=lines(folder / "openings.txt"),
        words=lines(folder / "words.txt"),
        cities=lines(folder / "cities.txt"),
    )


def lines(path: Path) -> list[str]:
    """The lines of a file, without comments and empty lines."""
    return [line for block in blocks(path) for line in block]


def blocks(path: Path) -> list[list[str]]:
    """The paragraphs of a file, as lists of lines; lines that begin with "# " are comments."""
    paragraphs = path.read_text(encoding="utf-8").split("\n\n")
    kept = [[ln for ln in p.splitlines() if not ln.startswith("# ")] for p in paragraphs]
    return [block for block in kept if block]


def parse_entry(block: list[str]) -> Entry:
    """Parse a block: "? " opens a question, "|" keeps a line of the answer as it is."""
    questions = tuple(line[2:] for line in block if line.startswith("? "))
    answer = [line for line in block if not line.startswith("? ")]
    as_it_is = answer[0].startswith("|")
    return Entry(questions, "\n".join(x[2:] for x in answer) if as_it_is else " ".join(answer))


def exchange(question: str, answer: str) -> list[Message]:
    """A user message and the assistant's answer to it."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def tool_schema(name: str) -> Message:
    """A tool without parameters, in OpenAI's shape."""
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def invented_name(rng: random.Random) -> str:
    """A city that does not exist, so that the model learns to copy and not only to recall."""
    syllables = [rng.choice(CONSONANTS) + rng.choice("aeiou") for _ in range(rng.randint(2, 3))]
    return ("".join(syllables) + rng.choice(["", "n", "s", "r", "ton"])).capitalize()


def untidy(question: str, rng: random.Random) -> str:
    """The question as a person might type it: case, punctuation, courtesies, a slip."""
    if rng.random() < 0.4:
        return question
    if rng.random() < 0.3:
        question = question.rstrip("?.!")
    if rng.random() < 0.3:
        question = question.lower()
    elif rng.random() < 0.1:
        question = question.upper()
    if rng.random() < 0.1:
        question = rng.choice(["Please: ", "Hi, ", "So, ", "Hello! ", "ok, "]) + question
    if rng.random() < 0.1:
        question += rng.choice(["?", "!", " ", "??", " please", "\n", " Thanks."])
    if rng.random() < 0.15 and len(question) > 12:
        slip = rng.randrange(1, len(question) - 1)
        question = question[:slip] + question[slip + 1 :]
    return question


def vocabulary_text(texts: Texts) -> list[str]:
    """What the tokenizer is trained on."""
    questions = [question for question, _ in texts.pairs]
    known = [entry.answer for entry in texts.entries] + texts.passages
    tools = [json.dumps({"name": n, "arguments": {"city": "", "pool": ""}}) for n in OTHER_TOOLS]
    fixed = [UNKNOWN, NO_CONTINUATION, NO_WEATHER, NO_DEPTH, AFTER_TOOL]
    asked = [*texts.unrelated, *texts.words, *questions, *(q.lower() for q in questions)]
    return [*known, *fixed, *asked, *tools, *SYSTEM_PROMPTS, *texts.cities]
