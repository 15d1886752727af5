"""The demo model: a very small Llama that real vLLM serves on a CPU, made by `train.py`."""

from pathlib import Path

from shared.fleet.pool import DEMO_MODEL

MODEL_DIR: Path = Path(__file__).parent / "model"
MODEL_NAME = DEMO_MODEL
