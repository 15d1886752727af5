"""The rules of the house: who may import whom, and where names and settings are spelt."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("shared", "gateway", "worker")
MODEL_FILES = (
    "worker/engines/vllm/",
    "worker/demo/",
)


@cache
def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), path)


def files(*folders: str) -> list[str]:
    return sorted(
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    )


def imports(path: str, *, at_load: bool = False) -> Iterator[str]:
    """The modules a file names in its imports; `at_load`: only those that importing it imports."""
    waiting: list[ast.AST] = [tree(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif at_load and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif at_load and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)


def literals(path: str) -> Iterator[str]:
    """The strings of a file that are not docstrings; of an f-string, its parts."""
    prose = {
        id(node.value)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


@pytest.mark.parametrize(
    ("package", "forbidden", "but"),
    [
        ("shared", {"gateway", "worker", "fastapi", "celery", "vllm", "torch"}, ()),
        ("gateway", {"worker", "vllm", "torch", "transformers"}, ()),
        ("gateway", {"celery"}, ("gateway/maintenance/",)),
        ("worker", {"gateway", "celery", "fastapi"}, ()),
        ("worker", {"vllm", "torch", "transformers"}, MODEL_FILES),
    ],
)
def test_a_package_imports_only_what_it_may(
    package: str, forbidden: set[str], but: tuple[str, ...]
) -> None:
    wrong = [
        f"{path} imports {name}"
        for path in files(package)
        if not path.startswith(but or "-")
        for name in imports(path)
        if name.split(".")[0] in forbidden
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("what", "pattern", "home"),
    [
        ("Redis keys", r"flotilla:\S", "shared/protocol/keys.py"),
        ("metrics", r"flotilla_[a-z_]+$", "shared/platform/metrics.py"),
    ],
)
def test_names_are_spelt_in_one_file(what: str, pattern: str, home: str) -> None:
    wrong = [
        f"{path}: {text!r}"
        for path in files(*PACKAGES)
        if path != home
        for text in literals(path)
        if re.match(pattern, text)
    ]
    assert not wrong, f"{what} stand in {home} only"
    assert any(re.match(pattern, text) for text in literals(home))


def test_lua_takes_its_key_names_from_python() -> None:
    scripts = sorted((ROOT / "shared" / "protocol" / "scripts").rglob("*.lua"))
    assert scripts
    wrong = [s.name for s in scripts if re.search(r"""["']\s*flotilla""", s.read_text())]
    assert not wrong


def test_only_the_settings_look_at_the_environment() -> None:
    wrong = [
        f"{path}:{node.lineno}"
        for path in files(*PACKAGES)
        if path != "shared/platform/settings.py"
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Attribute) and ast.unparse(node) in {"os.environ", "os.getenv"})
        or (isinstance(node, ast.ImportFrom) and node.module == "os")
    ]
    assert not wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_a_packages_init_holds_its_docstring_only(package: str) -> None:
    body = tree(f"{package}/__init__.py").body
    assert len(body) == 1
    assert ast.get_docstring(tree(f"{package}/__init__.py"))


@pytest.mark.parametrize("path", files(*PACKAGES))
def test_every_module_says_what_it_is_for(path: str) -> None:
    assert ast.get_docstring(tree(path)), f"{path} has no docstring"


def test_no_module_imports_itself_through_others() -> None:
    modules = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in files(*PACKAGES)
    }
    graph = {
        module: {name for name in imports(path, at_load=True) if name in modules and name != module}
        for module, path in modules.items()
    }
    # `from shared import keys` loads shared.keys; that it loads the empty package too is no cycle.
    for package in PACKAGES:
        graph[package] = set()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_vocabulary_loads_without_either_side() -> None:
    code = "import sys, shared.queue; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "shared" in loaded
    heavy = {"fastapi", "starlette", "celery", "vllm", "torch", "transformers", "gateway", "worker"}
    assert not loaded & heavy
