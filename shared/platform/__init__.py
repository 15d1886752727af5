"""What every process stands on: settings, Redis connections, logs, metrics, background tasks."""
