"""What Celery does beside the requests: housekeeping, and how many workers there should be."""
