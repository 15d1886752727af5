"""What MkDocs calls while it builds the site (`hooks` in mkdocs.yml)."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from mkdocs.structure.files import File, Files

from docs import code_pages
from docs.repository_texts import ROOT, drawn, linked

_LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'\s>]+"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|icon))[^>]*\bhref=[\"']?(?:https?:)?//",
    re.IGNORECASE,
)


def on_files(files: Files, config: Any) -> Files:
    """Add what the navigation names: texts of the repository, and pages made of the code."""
    for page, text in asyncio.run(code_pages.pages()).items():
        files.append(File.generated(config, page, content=text))
    for path in re.findall(r"[\w/.-]+\.md", str(config.nav)):
        if not files.get_file_from_path(path) and (ROOT / path).exists():
            files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Draw the diagrams, and have links lead to pages of the site."""
    found = files.get_file_from_path
    return drawn(linked(markdown, page.file.src_uri, lambda path: found(path) is not None))


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Name the theme's search for screen readers. Raises ValueError if a page needs a network."""
    if found := _LOADED.search(output):
        raise ValueError(f"{page.file.src_uri} loads {found[0]}")
    return output.replace('"search" role="dialog"', '"search" role="dialog" aria-label="Search"')
