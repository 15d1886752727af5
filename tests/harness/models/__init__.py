"""The demo model, and what is known of the small models that tests make (made.py)."""

from shared.fleet.pool import DEMO_MODEL as DEMO
from worker.demo import MODEL_DIR as DEMO_FOLDER

LABELS = ("calm", "windy", "stormy")
"""The classes of the classifier."""
CHUNK_S = 2
"""Seconds of audio that the small Whisper model takes at once."""

__all__ = ["CHUNK_S", "DEMO", "DEMO_FOLDER", "LABELS"]
