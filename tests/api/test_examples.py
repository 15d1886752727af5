"""The examples of the documentation site that name what they print, on the simulated engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.fleet import Process, Stack
from tests.harness.settings import ROOT

PAGES = ROOT / "docs" / "pages"
BLOCK = re.compile(
    r"^```(?P<language>sh|python)\n(?P<code>.*?)^```\n(?:\n<!-- prints: (?P<prints>[^\n]*) -->)?",
    re.MULTILINE | re.DOTALL,
)
URL = "http://127.0.0.1:8000"


def blocks() -> list[tuple[str, re.Match[str]]]:
    """(page and number, block) of all blocks in the pages that are written by hand."""
    return [
        (f"{path.relative_to(PAGES)}-{number}", match)
        for path in sorted(PAGES.rglob("*.md"))
        if path.name != "tour.md"  # has a test of its own
        for number, match in enumerate(BLOCK.finditer(path.read_text()), 1)
    ]


EXAMPLES = {name: match for name, match in blocks() if match["prints"]}


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    """One gateway and one worker, whose model has the demo model's name."""
    module_stack.worker(served_model_name="flotilla-demo", sim_step_ms=5, sim_step_us_per_seq=0)
    return module_stack.gateway()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_should(name: str, gateway: Process, tmp_path: Path) -> None:
    language, code, prints = EXAMPLES[name].group("language", "code", "prints")
    code = code.replace(URL, gateway.url)
    command = ["sh", "-euc", code] if language == "sh" else [sys.executable, "-c", code]
    folder = str(Path(sys.executable).parent)
    environment = os.environ | {
        "FLOTILLA_URL": gateway.url,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert prints in done.stdout, done.stdout + done.stderr


def test_every_example_that_asks_a_fleet_is_run() -> None:
    left_out = [name for name, match in blocks() if URL in match["code"] and not match["prints"]]
    assert left_out == []
    assert len(EXAMPLES) >= 10
