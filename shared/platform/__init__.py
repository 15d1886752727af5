"""What every process uses: settings, logs, metrics, traces, background tasks."""
