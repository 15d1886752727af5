"""What MkDocs calls while it builds the site (`hooks` in mkdocs.yml)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from docs.builder import (
    api_reference,
    command_reference,
    offline,
    pictures,
    repository,
    setting_tables,
)
from gateway.cli.main import app as command

_PLACES = repository.homes()


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made of the code and of files of the repository."""
    description = asyncio.run(api_reference.description())
    made = {
        "operate/settings.md": setting_tables.page(),
        "api/reference.md": api_reference.calls_page(description),
        "api/schemas.md": api_reference.schemas_page(description),
        "command-line.md": command_reference.page(command),
        **dict(repository.pages(_PLACES)),
    }
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    for file, page in repository.FILES.items():
        if not page.endswith(".md"):
            path = str(repository.ROOT / file)
            files.append(File.generated(config, page, abs_src_path=path))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put in sections of the repository's files, and pictures."""
    return pictures.drawn(repository.included(markdown, page.file.src_uri, _PLACES))


def on_post_page(output: str, **_: Any) -> str:
    """Give the theme's search a name for screen readers, which it lacks."""
    return output.replace('"search" role="dialog"', '"search" role="dialog" aria-label="Search"')


def on_post_build(config: Any) -> None:
    """Check that the site needs no network."""
    offline.check(Path(config.site_dir))
