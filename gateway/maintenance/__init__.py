"""Maintenance: clean-up as Celery tasks, the autoscaler's decisions on a timer."""
