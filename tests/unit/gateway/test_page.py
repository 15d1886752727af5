"""The page's files: all of them are served, and nothing in them needs the network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from gateway.http.page_files import PAGE_FILES
from gateway.ops import page_route as page
from tests.harness.settings import ROOT

FOLDER = ROOT / "gateway" / "page"
SOURCES = sorted(FOLDER.iterdir())


@pytest.fixture
def browser() -> TestClient:
    app = FastAPI()
    app.include_router(page.router)
    return TestClient(app)


def test_every_file_is_served_with_its_type_and_a_strict_policy(browser: TestClient) -> None:
    for path, file in PAGE_FILES.items():
        answer = browser.get(path)
        assert answer.status_code == 200
        assert answer.content == file.content
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert browser.get("/").headers["content-type"] == "text/html; charset=utf-8"
    assert browser.get("/ui/main.js").headers["content-type"].startswith("text/javascript")


def test_nothing_needs_the_network_or_a_weaker_policy() -> None:
    for path in SOURCES:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://[a-z]|@import|\burl\(", text) == [], path
        # These run or style what is no file of ours, so the policy forbids them.
        inline = (
            r'innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|style="'
        )
        assert re.findall(inline, text) == [], path
        assert re.findall(r"<script(?![^>]* src=)|\son[a-z]+=\"", text) == [], path


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_what_is_copied_into_a_shell_has_no_command_of_a_link_in_it() -> None:
    texts = [
        "state:failed since:1h",
        "",
        "x';touch${IFS}/tmp/owned;'",
        "job_1;touch /tmp/owned",
        "--url=http://evil.example",
        "-lane:flex model:a*b",
        'id:"$(touch)" `touch` \\ ~ ! # & | < > ( ) {a,b} [a] ?',
        "a\nb\x03\x1bc\x9b\u202ed",
    ]
    script = """
      const { word, words } = await import(process.argv[1]);
      const texts = JSON.parse(process.argv[2]);
      console.log(JSON.stringify(texts.map((text) => [word(text), words(text)])));
    """
    argv = ["node", "--input-type=module", "-e", script, str(FOLDER / "shell.js")]
    made = json.loads(subprocess.check_output([*argv, json.dumps(texts)], timeout=150))
    for text, (word, words) in zip(texts, made, strict=True):
        plain = re.sub("[\x00-\x1f\x7f-\x9f\u202e]+", " ", text)
        wanted = [re.sub("[\x00-\x1f\x7f-\x9f\u202e]+", " ", each) for each in text.split()]
        wanted = ["--", *wanted] if any(each.startswith("-") for each in wanted) else wanted
        for command, expected in ((word, [plain]), (words, wanted)):
            script = f"printf '%s\\0' x {command}"
            printed = subprocess.check_output(["sh", "-c", script], cwd="/", timeout=150).decode()
            assert printed.split("\0")[1:-1] == expected
