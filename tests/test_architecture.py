"""Rules that hold for the whole tree: who may import whom, and where each name is spelt."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.deletions.deletion import WITH_TESTS, delete

ROOT = Path(__file__).parent.parent
PACKAGES = ("shared", "gateway", "worker")
MODEL_FILES = (
    "worker/engines/vllm/",
    "worker/demo/",
)


PLATFORM, JOB = "shared/platform", "shared/job"
STORE, REDIS = "shared/store", "shared/store/redis"
FLEET, API = "shared/fleet", "shared/api"
FILES, BATCHES, WEBHOOKS = "shared/files", "shared/batches", "shared/webhooks"
TENANTS = "shared/tenants"
AUTOSCALER, OVERVIEW = "gateway/ops/autoscaler", "gateway/ops/overview"
DESCRIPTION = "gateway/description"
LISTEN, SETTINGS = "gateway/listen_settings.py", "gateway/gateway_settings.py"
WORKER_SETTINGS = "worker/worker_settings.py"
APIS = sorted(path.parent.name for path in (ROOT / "gateway" / "apis").glob("*/routes.py"))
ALLOWED: dict[str, set[str]] = {
    # Which folders the files of a folder may import, beside their own. No circle.
    JOB: set(),
    API: {JOB},
    PLATFORM: {JOB},
    FLEET: {PLATFORM, JOB},
    STORE: {JOB},
    FILES: {PLATFORM, JOB, BATCHES},
    BATCHES: {API},
    WEBHOOKS: {PLATFORM, JOB},
    TENANTS: {JOB},
    REDIS: {PLATFORM, JOB, FLEET, STORE, FILES, BATCHES, WEBHOOKS, TENANTS},
    "shared/client": set(),
    LISTEN: {PLATFORM, TENANTS},
    SETTINGS: {PLATFORM, JOB, FLEET, FILES, WEBHOOKS, LISTEN},
    "gateway/http": {PLATFORM, JOB, STORE, API, TENANTS, LISTEN, SETTINGS},
    "gateway/core": {
        PLATFORM, JOB, STORE, REDIS, FLEET, API, WEBHOOKS, TENANTS, SETTINGS, "gateway/http",
    },
    AUTOSCALER: {PLATFORM, JOB, STORE, REDIS, FLEET},
    OVERVIEW: {PLATFORM, JOB, STORE, REDIS, FLEET, AUTOSCALER, "gateway/core"},
    "gateway/files": {PLATFORM, JOB, REDIS, FILES},
    "gateway/webhooks": {PLATFORM, JOB, STORE, REDIS, WEBHOOKS},
    DESCRIPTION: {JOB, API, "gateway/http", "gateway/core"},
    "gateway/apis/anthropic": {
        JOB, REDIS, API, FILES, BATCHES, "gateway/http", "gateway/core", "gateway/files",
        DESCRIPTION,
    },
    "gateway/apis/audio": {DESCRIPTION},
    "gateway/apis/pooling": {DESCRIPTION},
    "gateway/apis/openai": {JOB, "gateway/http", "gateway/core", DESCRIPTION},
    "gateway/apis/torchserve": {
        JOB, REDIS, FLEET, API, "gateway/http", "gateway/core", DESCRIPTION,
    },
    "gateway/apis/jobs": {
        PLATFORM, JOB, STORE, API, WEBHOOKS, TENANTS, "gateway/http", "gateway/core",
        DESCRIPTION,
    },
    "gateway/apis/responses": {
        JOB, STORE, REDIS, API, SETTINGS, "gateway/http", "gateway/core", DESCRIPTION,
    },
    "gateway/apis/admin": {
        JOB, STORE, REDIS, FLEET, API, TENANTS, AUTOSCALER, "gateway/http", "gateway/core",
        DESCRIPTION,
    },
    "gateway/apis/batches": {
        JOB, STORE, REDIS, API, FILES, BATCHES, WEBHOOKS, "gateway/http", "gateway/core",
        "gateway/files", DESCRIPTION,
    },
    "gateway/apis/files": {
        JOB, FILES, "gateway/http", "gateway/core", "gateway/files", DESCRIPTION,
    },
    "gateway/apis/webhooks": {
        JOB, REDIS, WEBHOOKS, "gateway/http", "gateway/core", "gateway/webhooks", DESCRIPTION,
    },
    "gateway/apis/usage": {
        JOB, REDIS, TENANTS, "gateway/http", "gateway/core", DESCRIPTION,
    },
    "gateway/apis": {DESCRIPTION, *(f"gateway/apis/{api}" for api in APIS)},
    "gateway/ops": {
        PLATFORM, JOB, STORE, REDIS, FLEET, OVERVIEW, "gateway/http", "gateway/core",
        "gateway/files", DESCRIPTION,
    },
    "gateway/batches": {
        PLATFORM, JOB, STORE, REDIS, FLEET, API, FILES, BATCHES, SETTINGS, "gateway/core",
        "gateway/files",
    },
    "gateway/maintenance": {
        PLATFORM, JOB, STORE, REDIS, FLEET, FILES, WEBHOOKS, TENANTS, AUTOSCALER, SETTINGS,
        "gateway/batches", "gateway/files", "gateway/webhooks",
    },
    "gateway/launcher": {PLATFORM, STORE, REDIS, FLEET, LISTEN, AUTOSCALER, "gateway/maintenance"},
    "gateway/offline": {PLATFORM, FLEET, BATCHES, "shared/client", "gateway/launcher"},
    "gateway/cli": {
        PLATFORM, FLEET, BATCHES, "shared/client", "gateway/launcher", "gateway/offline",
    },
    "gateway": {
        PLATFORM, JOB, STORE, REDIS, FLEET, LISTEN, SETTINGS, OVERVIEW, "gateway/http",
        "gateway/core", "gateway/files", DESCRIPTION, "gateway/apis", "gateway/ops",
    },
    "worker/demo": {FLEET},
    WORKER_SETTINGS: {FLEET},
    "worker/engines": set(),
    "worker/engines/simulated": {PLATFORM, FLEET, API, "worker/engines"},
    "worker/engines/vllm": {PLATFORM, FLEET, "worker/engines"},
    "worker/core": {PLATFORM, JOB, STORE, REDIS, FLEET, API, WORKER_SETTINGS, "worker/engines"},
    "worker/plugins/hooks": {PLATFORM, JOB, FLEET, "worker/core"},
    "worker/plugins": {FLEET, "worker/core", "worker/plugins/hooks"},
    "worker": {
        PLATFORM, REDIS, FLEET, WORKER_SETTINGS, "worker/core", "worker/engines",
        "worker/engines/simulated", "worker/engines/vllm", "worker/plugins",
    },
}  # fmt: skip
LAYERS = {
    layer: {each for each in allowed if (ROOT / each).exists()}
    for layer, allowed in ALLOWED.items()
    if (ROOT / layer).exists()
}
"""ALLOWED without the plug-ins that were deleted."""
LAYER_EXCEPTIONS = {
    (
        "shared/platform/metrics/redis.py",
        "shared/store/redis/eviction.py",
    ): "a metric of Redis' settings",
}


@cache
def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), path)


@cache
def files(*folders: str) -> list[str]:
    return sorted(
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    )


@cache
def imports(path: str, *, at_load: bool = False) -> frozenset[str]:
    """The modules a file names in its imports; `at_load`: only those that importing it imports."""
    found = set[str]()
    waiting: list[ast.AST] = [tree(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif at_load and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif at_load and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
    return frozenset(found)


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
        ("Redis keys", r"flotilla:\S", "shared/store/redis/keys.py"),
        ("metrics", r"flotilla_[a-z_]+$", "shared/platform/metrics/"),
        (
            "attributes of spans",
            r"(gen_ai|flotilla)\.[a-z]+\.[a-z_.]+$",
            "shared/platform/tracing.py",
        ),
    ],
)
def test_names_are_spelt_in_one_place(what: str, pattern: str, home: str) -> None:
    wrong = [
        f"{path}: {text!r}"
        for path in files(*PACKAGES)
        if not path.startswith(home)
        and not (what == "metrics" and path.startswith("worker/plugins/"))
        for text in literals(path)
        if re.match(pattern, text)
    ]
    assert not wrong, f"{what} stand in {home} only (a plug-in's metrics in its folder)"
    at_home = files(home) if home.endswith("/") else [home]
    assert any(re.match(pattern, text) for path in at_home for text in literals(path))


@pytest.mark.parametrize(
    ("package", "homes"),
    [("opentelemetry", {"shared/platform/tracing.py", "shared/platform/otlp_file.py"})],
)
def test_a_library_is_imported_in_its_own_files_only(package: str, homes: set[str]) -> None:
    found = {p for p in files(*PACKAGES) if any(n.split(".")[0] == package for n in imports(p))}
    assert found == homes


@pytest.mark.parametrize(
    ("name", "homes"),
    [
        ("read_body", {"gateway/core/call.py"}),
        ("parse_json", {"gateway/core/call.py"}),
        ("parse_form", {"gateway/core/call.py"}),
        ("check_request", {"gateway/core/call.py"}),
        ("admit_tenant", {"gateway/core/call.py"}),
        ("admit", {"gateway/core/call.py"}),
        ("IdempotencyKey", {"gateway/core/call.py", "gateway/core/job_factory.py"}),
        (
            "JobFactory",
            {"gateway/app.py", "gateway/core/context.py", "gateway/batches/batch_context.py"},
        ),
    ],
)
def test_bytes_become_a_job_in_one_way(name: str, homes: set[str]) -> None:
    found = {
        path for path in files("gateway") if any(n.endswith(f".{name}") for n in imports(path))
    }
    assert found == homes


PLUG_INS = [
    path.parent.relative_to(ROOT).as_posix()
    for folder, module in (("gateway/apis", "routes"), ("worker/plugins", "__init__"))
    for path in sorted((ROOT / folder).glob(f"*/{module}.py"))
]
WITHOUT_ONE = {
    "gateway/apis": "from gateway.app import create_app; "
    "from gateway.gateway_settings import GatewaySettings; "
    "create_app(GatewaySettings()).fastapi.openapi()",
    "worker/plugins": "from worker.__main__ import PLUGINS; assert not PLUGINS; "
    "from shared.platform.settings import declared; declared()",
}
"""What works in a copy without one of the plug-ins in this folder."""


@pytest.mark.parametrize("folder", PLUG_INS)
def test_a_plug_in_goes_by_deleting_its_folder_and_its_lines(folder: str, tmp_path: Path) -> None:
    """Nothing else imports it: its row of the table is read in a copy without the folder."""
    parent, _, name = folder.rpartition("/")
    table, dotted = f"{parent}/table.py", folder.replace("/", ".")
    others = [path for path in files(*PACKAGES, "load_tests") if path != table]
    if folder in WITH_TESTS:
        others += [path for path in files("tests") if f"/{name}/" not in path]
    for path in others:
        if not path.startswith(f"{folder}/"):
            assert not [each for each in imports(path) if each.startswith(f"{dotted}.")], path
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package)
    delete(folder, tmp_path)
    before, rest = (tree_of.joinpath(table).read_text() for tree_of in (ROOT, tmp_path))
    assert rest.count("\n") == before.count("\n") - 2
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ONE[parent]],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_only_the_store_imports_a_client_of_redis() -> None:
    wrong = [
        f"{path} imports {name}"
        for path in files(*PACKAGES)
        if not path.startswith(f"{REDIS}/")
        for name in imports(path)
        if name.split(".")[0] in {"redis", "hiredis"}
    ]
    assert not wrong


def test_only_the_store_names_keys() -> None:
    named = {
        path
        for path in files(*PACKAGES)
        if not path.startswith(f"{REDIS}/") and f"{REDIS}/keys.py" in imported_modules(path)
    }
    assert named == {"gateway/maintenance/broker.py"}, "Celery's keys, which kombu writes"


REDIS_ERRORS = {
    # Where redis-py's errors become the store's, and a connection of redis-py's that raises them.
    f"{REDIS}/cluster.py",
    f"{REDIS}/redis_client.py",
    f"{REDIS}/redis_link.py",
    f"{REDIS}/store_errors.py",
}


def test_only_these_files_know_redis_pys_errors() -> None:
    known = {
        path
        for path in files(*PACKAGES)
        if any(name.startswith("redis.exceptions") for name in imports(path))
    }
    assert known == REDIS_ERRORS


def test_lua_takes_its_key_names_from_python() -> None:
    scripts = sorted((ROOT / "shared" / "store" / "redis" / "scripts").rglob("*.lua"))
    assert scripts
    wrong = [s.name for s in scripts if re.search(r"""["']\s*flotilla""", s.read_text())]
    assert not wrong


def test_only_the_settings_look_at_the_environment() -> None:
    wrong = [
        f"{path}:{node.lineno}"
        for path in files(*PACKAGES)
        if path != "shared/platform/settings.py"
        and not path.startswith("worker/plugins/hooks/examples/")  # to copy from: their users' code
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
def test_every_module_has_a_docstring(path: str) -> None:
    assert ast.get_docstring(tree(path)), f"{path} has no docstring"


@cache
def modules() -> dict[str, str]:
    """Every module's name and its file."""
    return {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in files(*PACKAGES)
    }


@cache
def imported_modules(path: str) -> set[str]:
    """The files of ours that a file imports: at load, in functions and for type checking.

    `from shared.fleet import pools` imports the module pools; the package's `__init__` is empty.
    """
    ours = modules()
    found = {ours[name] for name in imports(path) if name in ours}
    return {each for each in found if each != path and not each.endswith("__init__.py")}


def test_there_is_no_import_circle_not_even_for_types() -> None:
    graph = {path: imported_modules(path) for path in files(*PACKAGES)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def layer_of(path: str) -> str:
    """A file's row in LAYERS: its own, if it has one, else that of the nearest folder."""
    return next(each for each in (path, *map(str, Path(path).parents)) if each in LAYERS)


def test_the_layers_have_an_order() -> None:
    list(TopologicalSorter(LAYERS).static_order())


def test_a_folder_imports_only_the_folders_below_it() -> None:
    wrong = [
        f"{path} imports {each}"
        for path in files(*PACKAGES)
        for each in sorted(imported_modules(path))
        if layer_of(each) not in {layer_of(path), *LAYERS[layer_of(path)]}
        and (path, each) not in LAYER_EXCEPTIONS
    ]
    assert not wrong


def test_the_table_of_layers_allows_nothing_that_is_not_used() -> None:
    used: dict[str, set[str]] = {layer: set() for layer in LAYERS}
    exceptions = set()
    for path in files(*PACKAGES):
        for each in imported_modules(path):
            used[layer_of(path)].add(layer_of(each))
            exceptions.add((path, each))
    unused = {layer: LAYERS[layer] - used[layer] for layer in LAYERS}
    assert not {layer: folders for layer, folders in unused.items() if folders}
    assert exceptions >= set(LAYER_EXCEPTIONS)


def test_the_vocabulary_loads_without_either_side() -> None:
    code = (
        "import sys, shared.store.redis.job_queue; "
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
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
