"""`python -m gateway.maintenance`: the maintenance process; with `--check`, its health check.

Two of them may run for one fleet: each task still runs once a round.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from gateway.maintenance import liveness_file
from gateway.maintenance.maintenance_settings import MaintenanceSettings
from shared.platform import process_start
from shared.platform.settings import SettingsError, drop_variables, load_settings


def main() -> None:
    """Run until SIGTERM or SIGINT; exit status 2 for wrong settings."""
    process_start.prepare()
    parser = argparse.ArgumentParser(
        "python -m gateway.maintenance",
        description="Removes stale records, runs batches and webhooks, decides for the autoscaler.",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit status 0 if this machine's maintenance process is alive",
    )
    arguments = parser.parse_args()
    try:
        settings = load_settings(MaintenanceSettings)
        if arguments.check:
            problem = liveness_file.problem(settings)
            sys.exit(problem or 0)
        # Not needed for `--check`, which containers run every ten seconds.
        from gateway.maintenance.process import run
        from shared.platform import logs

        stdout = os.dup(1)  # `set_up` redirects it; the Celery worker writes its own lines there
        logs.set_up(settings.log_level, settings.log_format)
        drop_variables("CELERY_")
        sys.exit(asyncio.run(run(settings, stdout)))
    except SettingsError as error:
        print(f"flotilla maintenance: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
