"""The classes of the classifier; a file of its own, because made_models.py loads torch."""

LABELS = ("calm", "windy", "stormy")
