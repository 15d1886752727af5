"""Prints the size of the tree beside its budgets; ends with 1 above a ceiling (`make lint`).

The goal is where a figure shall be, the ceiling where it stood last: a change that makes a figure
smaller lowers its ceiling. A ceiling is raised only by a commit that says why.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CORE = ("shared/job", "shared/store", "gateway/core", "worker/core")
PRODUCT = ("shared", "gateway", "worker")
FILE_LINES, FUNCTION_LINES, ARGUMENTS = 300, 50, 6
WALKS = ROOT / "docs" / "pages" / "walks.md"


class Budget(NamedTuple):
    """One figure of the tree."""

    name: str
    now: int
    ceiling: int
    """Where it stood last; it may only go down."""
    goal: int


def sources(*folders: str, kinds: tuple[str, ...] = (".py", ".lua")) -> list[Path]:
    """The source files of these folders."""
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in kinds and "__pycache__" not in path.parts
    )


def lines(path: Path) -> int:
    """The number of lines of a file."""
    return path.read_text().count("\n")


def total(*folders: str) -> int:
    """The lines of all source files in these folders."""
    return sum(map(lines, sources(*folders)))


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions of a Python file, methods included, with names for people."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def long_files() -> dict[str, int]:
    """Python files of the product that are longer than a file may be."""
    found = {str(path.relative_to(ROOT)): lines(path) for path in sources(*PRODUCT, kinds=(".py",))}
    return {name: count for name, count in found.items() if count > FILE_LINES}


def long_functions() -> dict[str, int]:
    """Functions of the product that are longer than a function may be."""
    found = {
        name: (node.end_lineno or node.lineno) - node.lineno + 1
        for path in sources(*PRODUCT, kinds=(".py",))
        for name, node in functions(path)
    }
    return {name: count for name, count in found.items() if count > FUNCTION_LINES}


def wide_constructors() -> dict[str, int]:
    """Constructors of the product with more arguments than one may have, without `self`."""
    found = {
        name: len(node.args.args) + len(node.args.kwonlyargs) + len(node.args.posonlyargs) - 1
        for path in sources(*PRODUCT, kinds=(".py",))
        for name, node in functions(path)
        if node.name == "__init__"
    }
    return {name: count for name, count in found.items() if count > ARGUMENTS}


def walks() -> dict[str, list[tuple[str, str]]]:
    """Title of each walk -> its rows: a file, and the function by which the path enters it."""
    return {
        part.partition("\n")[0]: re.findall(r"^\| `([\w./]+)` \| `([\w.]+)` \|", part, re.MULTILINE)
        for part in WALKS.read_text().split("\n## ")[1:]
    }


def files_of_walks() -> list[int]:
    """How many files each walk has. A request has those of its tokens, too."""
    request, token, worker = ({file for file, _ in rows} for rows in walks().values())
    return [len(request | token), len(token), len(worker)]


def budgets() -> list[Budget]:
    """All figures, each with its ceiling and its goal."""
    request, token, worker = files_of_walks()
    files, functions_, arguments = long_files(), long_functions(), wide_constructors()
    return [
        # Admission (issue 33) adds 550 lines of core, 750 of product, 220 of load tests.
        # The ledger of use (issue 33) adds 350 lines of core, 1,080 of product, 120 of load tests.
        # The audit trail adds 90 and 240; the append-only file that is written anew, 20.
        # Limits of keys and tenants (issue 33) add 470 lines of core, 820 of product: nothing
        # has counted by key or over several gateways before.
        # What is used of budgets adds 75 and 160: two API plug-ins show it, so it is in the core.
        # `submit` tells a full worker with jobs of the lane flex of a job that has to wait (LOOK):
        # 40 lines of core. Looks at fixed times came up to 37 ms later, and more looks cost Redis
        # more. What is left of advertised slots after a lost connection: 15.
        # An event is delivered straight from the outbox, results are stored in rounds: 200 lines of
        # core, 300 of product. A job with a subscriber costs Redis 6 us more, so far 107.
        # What a claim needs of waiting jobs with prefixes lies beside the queue: 45, as a claim
        # costs Redis 66 us more than a plain one, so far 127.
        # Deliveries of webhooks that had no room for a try begin once one has ended: 21 lines of
        # product. So far they could wait for 30 s, until their claims had run out.
        # A claim takes no more jobs than the KV cache has room for (20 lines of core): tenants are
        # served 5 % more alike. Its charge makes up for what a level forgets, and what is paid back
        # counts at the next claim (14): shares are within 3 % of the weights. Kills that wait for
        # the workers: 7 lines of load tests.
        # What a node of a cluster costs is measured by a command: 118 lines of load tests.
        # Capacity: p99 is that of nine simulations, as it depends on which steps come together,
        # measured answers end evenly, frames cost more where nothing of their jobs is in the
        # caches, and each round is predicted by its own runs: 43 lines of load tests.
        # Closed pools of a cluster make no connection, and what is read in parallel ends together:
        # 8 of core, 15 of product.
        # The headers of a call are read beside its member `flotilla`, in the core: 48 lines moved.
        # At a job's end and in its events Redis is asked again after a lost connection (2 of core);
        # claims begin with the shard whose oldest job waits longest (2).
        # A token's frame is packed with three calls less: 13 of core, 16 of product. What is
        # counted and has expired, but was not swept yet, is no damage: 3.
        # What waits while a log is read has a bound in bytes, and a submit that failed is not
        # "lost": 10 of core. A fault of a cluster waits until streams of each shard are open: 17 of
        # load tests. A setting for how long idle connections stay: 9 of product.
        Budget("lines of the core", total(*CORE), 25_212, 14_000),
        Budget("lines of the product", total(*PRODUCT), 65_779, 34_000),
        Budget("lines of the load tests", total("load_tests"), 15_058, 9_000),
        Budget(f"files above {FILE_LINES} lines", len(files), 3, 0),
        Budget(f"functions above {FUNCTION_LINES} lines", len(functions_), 0, 0),
        Budget(f"constructors above {ARGUMENTS} arguments", len(arguments), 0, 0),
        Budget("files on the path of a chat request", request, 84, 30),
        Budget("files on the path of a token", token, 32, 14),
        Budget("files on the path of a killed worker", worker, 44, 17),
    ]


def main() -> int:
    """Print each figure beside its ceiling and its goal. Returns the exit status."""
    found = budgets()
    print(f"{'budget':36} {'now':>7} {'ceiling':>7} {'goal':>7}")
    for name, now, ceiling, goal in found:
        print(f"{name:36} {now:7,} {ceiling:7,} {goal:7,}{'' if now <= ceiling else '  EXCEEDED'}")
    if all(each.now <= each.ceiling for each in found):
        return 0
    for places in (long_files(), long_functions(), wide_constructors()):
        for name, count in places.items():
            print(f"  {count:5} {name}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
