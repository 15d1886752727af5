"""A `before` hook for retrieval: the passages that fit the last question go in front of the chat.

The index is BM25 over the paragraphs of the text files in one folder, kept in memory; for a real
one, replace `Index`. RAG_FOLDER names the folder; the default has a few passages about Flotilla.

    FLOTILLA_HOOKS=before=worker.plugins.hooks.examples.rag:retrieve
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from worker.plugins.hooks.hook_types import Request

FOLDER = Path(os.environ.get("RAG_FOLDER") or Path(__file__).parent / "passages")
N_PASSAGES = 3
_WORD = re.compile(r"[^\W_]+")
_K1, _B = 1.5, 0.75  # BM25's usual constants


class Index:
    """Passages, and a ranking of them for a question. The same question gets the same ones."""

    def __init__(self, passages: list[str]) -> None:
        self._passages = passages
        self._counts = [Counter(_words(passage)) for passage in passages]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._mean_length = sum(self._lengths) / max(1, len(passages))
        self._in_how_many = Counter(word for counts in self._counts for word in counts)

    @classmethod
    def of_folder(cls, folder: Path) -> Index:
        """The paragraphs of all .txt and .md files in a folder."""
        files = sorted(path for path in folder.iterdir() if path.suffix in {".txt", ".md"})
        parts = [part.strip() for path in files for part in path.read_text().split("\n\n")]
        return cls([part for part in parts if part])

    def search(self, question: str, n: int) -> list[str]:
        """The `n` passages that fit best, best first; fewer if no others share a word with it."""
        words = _words(question)
        scores = [self._score(number, words) for number in range(len(self._passages))]
        best = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
        return [self._passages[number] for number in best[:n] if scores[number] > 0]

    def _score(self, number: int, words: list[str]) -> float:
        counts, score = self._counts[number], 0.0
        length = self._lengths[number] / self._mean_length
        for word in words:
            if count := counts[word]:
                rare = len(self._passages) - self._in_how_many[word] + 0.5
                weight = math.log(1 + rare / (self._in_how_many[word] + 0.5))
                score += weight * count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * length))
        return score


def retrieve(request: Request) -> None:
    """Put passages in front of a chat. They are in `state["passages"]` for later hooks."""
    messages = request.body.get("messages")
    if not request.path.endswith("/chat/completions") or not isinstance(messages, list):
        return
    passages = _index.search(_last_question(messages), N_PASSAGES)
    request.state["passages"] = passages
    if passages:
        text = "Use these passages where they help:\n\n" + "\n\n".join(passages)
        request.body["messages"] = [{"role": "system", "content": text}, *messages]


def _last_question(messages: list[Any]) -> str:
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            texts = [part.get("text") for part in content or () if isinstance(part, dict)]
            return " ".join(text for text in texts if isinstance(text, str))
    return ""


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


_index = Index.of_folder(FOLDER)
