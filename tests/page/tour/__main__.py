"""`make tour`: the tour on a fleet of its own; its pictures go to docs/pages/tour/."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.page.browser import NAMES, launched
from tests.page.tour.document import DOCUMENT
from tests.page.tour.walk import Walk


def main() -> int:
    """Walk, and print what the commands print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pictures", type=Path, default=DOCUMENT.with_suffix(""), help="the folder for them"
    )
    pictures = parser.parse_args().pictures
    pictures.mkdir(parents=True, exist_ok=True)
    with launched() as browser, tempfile.TemporaryDirectory() as folder:
        if browser is None:
            print(f"tour: none of {', '.join(NAMES)} is installed", file=sys.stderr)
            return 1
        walk = Walk(browser, Path(folder), pictures)
        for title, printed in walk.run().items():
            print(f"== {title}\n{printed}")
    print(f"{len(walk.taken)} pictures in {pictures}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
