"""What `LLM.generate` answers to the bodies of a batch: `python -m tests.vllm.generate IN OUT`.

A process of its own, whose engine ends with it. OUT has the texts, as a JSON list.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from vllm import LLM, SamplingParams

from tests.harness.models import DEMO_FOLDER


def main() -> None:
    """Answer all bodies in one call."""
    bodies = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    llm = LLM(
        str(DEMO_FOLDER),
        dtype="float32",
        enforce_eager=True,
        max_model_len=1024,
        kv_cache_memory_bytes=256 << 20,
    )
    parameters = [
        SamplingParams(
            temperature=body["temperature"],
            max_tokens=body["max_tokens"],
            ignore_eos=body["ignore_eos"],
        )
        for body in bodies
    ]
    answers = llm.generate([body["prompt"] for body in bodies], parameters)
    texts = [answer.outputs[0].text for answer in answers]
    Path(sys.argv[2]).write_text(json.dumps(texts))


if __name__ == "__main__":
    main()
