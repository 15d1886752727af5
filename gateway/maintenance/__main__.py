"""`python -m gateway.maintenance`: Celery's worker and beat in one process; with `--check`, its health.

Two of them may run for one fleet: each task is done once a round all the same.
"""

from __future__ import annotations

import argparse
import sys

from gateway.maintenance import liveness_file
from shared.platform import logs
from shared.platform.settings import SettingsError, drop_variables, load_settings


def main() -> None:
    """Runs until a signal."""
    parser = argparse.ArgumentParser(
        "python -m gateway.maintenance", description="The fleet's maintenance."
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit status 0 if this machine's maintenance process is alive",
    )
    arguments = parser.parse_args()
    try:
        settings = load_settings()
        if arguments.check:
            problem = liveness_file.problem(settings)
            sys.exit(problem or 0)
        logs.set_up(settings.log_level, settings.log_format)
        drop_variables("CELERY_")
        from gateway.maintenance.process import run  # not for `--check`: it loads Celery

        run(settings)
    except SettingsError as error:
        print(f"flotilla maintenance: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
