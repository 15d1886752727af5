"""The repository's own texts on the site: whole files, and sections of the README.

They are included when the site is built, so there is one copy of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docs.builder import links
from docs.builder.links import Homes
from docs.builder.sections import headings, section

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "pages"
README = "README.md"

FILES = {
    "CHANGELOG.md": "inside/changelog.md",
    "CONTRIBUTING.md": "inside/contributing.md",
    "SECURITY.md": "operate/security.md",
    "compose/README.md": "operate/containers.md",
    "compose/autoscaling.md": "operate/autoscaling.md",
    "compose/kubernetes/README.md": "operate/kubernetes.md",
    "compose/observability/README.md": "operate/metrics.md",
    "compose/observability/runbooks.md": "operate/runbooks.md",
    "gateway/apis/admin/README.md": "operate/operator-calls.md",
    "load_tests/README.md": "figures.md",
    "shared/api/ROUTES.md": "api/routes.md",
    "shared/client/README.md": "api/resuming-clients.md",
    "shared/fleet/MODELS.md": "operate/models.md",
    "shared/store/redis/FAILURES.md": "operate/failures.md",
    "shared/store/redis/PROTOCOL.md": "inside/protocol.md",
    "worker/engines/CONTINUATION.md": "inside/continuation.md",
    "worker/plugins/hooks/README.md": "operate/hooks.md",
}
"""File -> its page."""
_INCLUDE = re.compile(r"^<!-- include (\S+): (.*) -->$", re.MULTILINE)


def homes() -> Homes:
    """Where the repository's files are, with the sections that pages include."""
    sections = {}
    for path in sorted(PAGES.rglob("*.md")):
        page = path.relative_to(PAGES).as_posix()
        for file, title in _INCLUDE.findall(path.read_text()):
            for heading in headings(section((ROOT / file).read_text(), title)):
                sections[file, heading.anchor] = page
    return Homes(ROOT, FILES | {README: "index.md"}, sections)


def pages(places: Homes) -> Iterator[tuple[str, str]]:
    """(page, text) of each Markdown file that is a page as a whole."""
    for file, page in FILES.items():
        if page.endswith(".md"):
            yield page, links.rewritten((ROOT / file).read_text(), file, page, places)


def included(markdown: str, page: str, places: Homes) -> str:
    """A page's text with `<!-- include FILE: HEADING -->` replaced by that section of the file.

    A heading that is the page's title already is left out.
    """

    def text(match: re.Match[str]) -> str:
        file, title = match.groups()
        found = section((ROOT / file).read_text(), title)
        if markdown.startswith(f"# {title}\n"):
            found = found.split("\n", 1)[1]
        return links.rewritten(found, file, page, places)

    return _INCLUDE.sub(text, markdown)
