"""The demo model: a very small Llama that real vLLM serves on a CPU, made by
`demo_model/train.py`."""

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"
