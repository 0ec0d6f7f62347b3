"""Check that tests notice small mistakes: `python bench/mutants.py [--seed=1] [--mutants=300] [--workers=1]`.

Draws small mistakes in the core of the scheduler and in the reading of quota files: a comparison turned or shifted,
`and` for `or`, a sign, a constant off by one, a negated condition, a result or a statement left out. Makes each in a
copy of the tree, and runs the tests that reach the line, the quickest first, until one fails. One run that measures
coverage finds which tests reach which lines.

Explain each mutant that no test notices in `docs/development/mutants.md`, or write the missing test. Results are kept
in `build/mutants/`: an interrupted run continues, and mutants that no test noticed are tried again (the others only if
their file has changed). Only quick tests take part, and property tests with few examples, so the check is strict.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import queue
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import coverage

TREE = Path(__file__).resolve().parent.parent
BUILD = TREE / "build" / "mutants"
EXPLAINED = TREE / "docs" / "development" / "mutants.md"
COPIED = ("quota", "scheduler", "bastion", "tests", "pyproject.toml")
CORE = (
    *("scheduler/one_pass.py", "scheduler/scheduling.py", "scheduler/decide/*.py", "scheduler/explain/*.py"),
    *(f"quota/{name}.py" for name in ("lines", "matching", "policy", "reading", "rules")),
)
TARGETS = tuple(
    str(file.relative_to(TREE)) for name in CORE for file in sorted(TREE.glob(name)) if file.name != "__init__.py"
)
TESTS = (
    *("tests/golden", "tests/unit/scheduler", "tests/unit/quota", "tests/cli/test_cli_quota_check.py"),
    *("tests/property/test_scheduler_*.py", "tests/property/test_quota_*.py"),
)
MEMORY_BYTES = 4 << 30
# For one mutant; the quickest tests that reach it run, as many as fit.
BUDGET_SECONDS = 30.0
# Not changed: they matter only to the type checker, or to the reader of a failure.
_NO_CODE = ("annotation", "returns", "decorator_list", "type_comment", "bases")
_NO_VALUE = ("strict", "frozen", "slots", "kw_only", "repr", "compare")

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Attributes:
        where: The function it is in.
        change: The code before and after.
        source: The whole module with the mistake.
    """

    path: str
    line: int
    where: str
    change: str
    source: str

    @property
    def key(self) -> str:
        """Its key in the results: the same as long as its file is the same."""
        return hashlib.sha256(f"{self.path}\n{self.source}".encode()).hexdigest()[:20]

    @property
    def title(self) -> str:
        """Its title in `docs/development/mutants.md`."""
        return f"`{self.path}` {self.where}: {self.change}"


@dataclass(frozen=True)
class Result:
    """The outcome of a mutant: `killed`, `survived`, or `unreached` by any test."""

    key: str
    title: str
    line: int
    outcome: str
    seconds: float


# The mistakes


def draw(paths: Sequence[str], seed: int, count: int) -> list[Mutant]:
    """Draw that many mutants of these modules, or all; after a small edit, most of them are the same."""
    drawn: list[tuple[str, str, int, int]] = []
    for path in paths:
        places = _places(ast.parse((TREE / path).read_text("utf-8")))
        alike = Counter[str]()
        for index, place in enumerate(places):
            child = _at(place)
            for number in range(len(_changed(child))):
                name = f"{path} {place[-1]} {ast.unparse(child)} {number}"
                alike[name] += 1
                lot = hashlib.sha256(f"{seed} {name} {alike[name]}".encode()).hexdigest()
                drawn.append((lot, path, index, number))
    return [mutant(*place) for _, *place in sorted(sorted(drawn)[:count], key=lambda each: each[1:])]


def mutant(path: str, index: int, number: int) -> Mutant:
    """Make one mutant: the change of that number at that place."""
    tree = ast.parse((TREE / path).read_text("utf-8"))
    place = parent, field, position, where = _places(tree)[index]
    child = _at(place)
    changed = _changed(child)[number]
    # A number alone says too little.
    brief = isinstance(child, ast.Constant) and not isinstance(parent, ast.Module)
    before = _short(parent if brief else child)
    if position is None:
        setattr(parent, field, changed)
    else:
        getattr(parent, field)[position] = changed
    change = f"`{before}` → `{_short(parent if brief else changed)}`"
    return Mutant(path, child.lineno, where, change, ast.unparse(ast.fix_missing_locations(tree)))


def _short(node: ast.AST) -> str:
    lines = ast.unparse(node).strip().splitlines()
    text = lines[0] if isinstance(node, ast.stmt) else " ".join(line.strip() for line in lines)
    return textwrap.shorten(text, 90, placeholder=" …").replace("`", "'")


# A node's parent, its field there, its index if there are several, and its function.
Place = tuple[ast.AST, str, "int | None", str]


def _at(place: Place) -> ast.expr | ast.stmt:
    parent, field, position, _ = place
    return getattr(parent, field) if position is None else getattr(parent, field)[position]


def _places(tree: ast.AST, where: str = "module") -> list[Place]:
    """List every statement and expression that may be changed."""
    places: list[Place] = []
    for field, value in ast.iter_fields(tree):
        if field in _NO_CODE or (isinstance(tree, ast.keyword) and tree.arg in _NO_VALUE):
            continue
        for position, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST):
                continue
            inside = where
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                inside = child.name if where == "module" else f"{where}.{child.name}"
            elif isinstance(child, (ast.stmt, ast.expr)):
                places.append((tree, field, position, where))
            places += _places(child, inside)
    return places


def _changed(node: ast.AST) -> list[ast.AST]:
    """Return the node with each mistake that can be made in it."""
    changed: list[ast.AST] = []
    match node:
        case ast.Compare(ops=ops):
            for number, operator in enumerate(ops):
                other = copy.deepcopy(node)
                other.ops[number] = _COMPARISONS[type(operator)]()
                changed.append(other)
        case ast.BoolOp(op=op, values=values):
            changed.append(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SIGNS and not (_is_text(left) or _is_text(right)):
            changed.append(ast.BinOp(left, _SIGNS[type(op)](), right))
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            changed.append(operand)
        case ast.Constant(value=bool(value)):
            changed.append(ast.Constant(not value))
        case ast.Constant(value=int(value) | float(value)):
            changed += [ast.Constant(value + 1), ast.Constant(value - 1)]
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
            changed.append(ast.Call(ast.Name(_NAMES[name], ast.Load()), node.args, node.keywords))
        case ast.Call(func=ast.Name(id="sorted") | ast.Attribute(attr="sort")):
            backwards = ast.keyword("reverse", ast.Constant(True))
            changed.append(ast.Call(node.func, node.args, [*node.keywords, backwards]))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            other = copy.deepcopy(node)
            other.test = ast.UnaryOp(ast.Not(), copy.deepcopy(test))
            changed.append(other)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            changed.append(ast.Return(ast.Constant(None)))
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete() | ast.Continue() | ast.Break():
            changed.append(ast.Pass())
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            changed.append(ast.Pass())
    return changed


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


# The tests


@dataclass(frozen=True)
class Reach:
    """Which tests reach which lines, and how long they take."""

    by_line: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that reach the mutant (for code that runs on import: its module), the quickest first."""
        lines = self.by_line.get(mutant.path, {})
        tests = set(lines.get(mutant.line, ()))
        if not tests or mutant.where == "module":
            tests = {test for names in lines.values() for test in names}
        chosen, budget = [], BUDGET_SECONDS
        for test in sorted(tests, key=lambda test: (self.seconds.get(test, 1.0), test)):
            budget -= self.seconds.get(test, 1.0)
            if budget < 0:
                break
            chosen.append(test)
        return chosen


def learn(tree: Path) -> Reach:
    """Run all tests once in that copy.

    Raises:
        SystemExit: A test fails.
    """
    data, report = tree / ".coverage", tree / "times.xml"
    measure = ["--cov=quota", "--cov=scheduler", "--cov-context=test", "--cov-report=", f"--junitxml={report}"]
    done = subprocess.run(
        _pytest([*measure, *sorted(str(file) for name in TESTS for file in tree.glob(name))]),
        cwd=tree,
        env=_environment(tree),
        check=False,
    )
    if done.returncode:
        raise SystemExit("the tests fail without any mutant; mend that first")
    covered = coverage.CoverageData(str(data))
    covered.read()
    by_line: dict[str, dict[int, list[str]]] = {}
    for path in TARGETS:
        contexts = covered.contexts_by_lineno(str(tree / path))
        by_line[path] = {
            line: sorted({name.rpartition("|")[0] for name in names if name}) for line, names in contexts.items()
        }
    seconds = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        seconds[f"{file}::{case.attrib['name']}"] = float(case.attrib["time"])
    return Reach(by_line, seconds)


def _pytest(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "HYPOTHESIS_PROFILE": "mutants"}


def copy_tree(name: str) -> Path:
    """Copy the working tree."""
    tree = BUILD / name
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for entry in COPIED:
        if (TREE / entry).is_dir():
            shutil.copytree(TREE / entry, tree / entry, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(TREE / entry, tree / entry)
    return tree


def try_mutant(tree: Path, mutant: Mutant, reach: Reach) -> Result:
    """Make the mistake in that copy, run the tests that reach it, and undo it."""
    began = time.monotonic()
    tests = reach.tests(mutant)
    outcome = "unreached"
    if tests:
        file = tree / mutant.path
        good = file.read_bytes()
        try:
            file.write_text(mutant.source, "utf-8")
            for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
                compiled.unlink()
            outcome = "survived" if _passes(tree, tests, reach) else "killed"
        finally:
            file.write_bytes(good)
    return Result(mutant.key, mutant.title, mutant.line, outcome, round(time.monotonic() - began, 1))


def _passes(tree: Path, tests: list[str], reach: Reach) -> bool:
    """Whether all tests pass in time."""
    names = tree / "tests.txt"
    names.write_text("\n".join(tests), "utf-8")
    seconds = [reach.seconds.get(test, 1.0) for test in tests]
    arguments = ["-x", f"--timeout={10 + 5 * max(seconds):.0f}", "--no-header", "--tb=no", f"@{names}"]
    process = subprocess.Popen(
        _pytest(arguments),
        cwd=tree,
        # A module that was compiled a moment ago could be taken for the present one.
        env={**_environment(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )
    try:
        return process.wait(timeout=60 + 4 * sum(seconds)) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# The run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--workers", type=int, default=1, help="how many run at once; each needs a core")
    parser.add_argument("--only", default="", help="draw from the files with this in their path")
    options = parser.parse_args()
    drawn = draw([path for path in TARGETS if options.only in path], options.seed, options.mutants)
    kept = BUILD / "results.jsonl"
    known = _read_results(kept)
    left = [each for each in drawn if each.key not in known or known[each.key].outcome != "killed"]
    print(f"{len(drawn)} mutants, {len(left)} of them to be tried", flush=True)
    if left:
        began = time.monotonic()
        _try_all(left, options.workers, kept, known)
        print(f"that took {(time.monotonic() - began) / 60:.0f} minutes")
    return _tell(drawn, known)


def _try_all(left: list[Mutant], workers: int, kept: Path, known: dict[str, Result]) -> None:
    trees = [copy_tree(f"tree-{number}") for number in range(workers)]
    reach = learn(trees[0])
    free = queue.SimpleQueue[Path]()
    for tree in trees:
        free.put(tree)

    def attempt(mutant: Mutant) -> Result:
        tree = free.get()
        try:
            return try_mutant(tree, mutant, reach)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(workers) as pool, kept.open("a", encoding="utf-8") as file:
        attempts = {pool.submit(attempt, each): each for each in left}
        try:
            for number, done in enumerate(as_completed(attempts), start=1):
                result = done.result()
                known[result.key] = result
                file.write(json.dumps(asdict(result)) + "\n")
                file.flush()
                print(f"{number:4}/{len(left)} {result.seconds:5.1f} s  {_line(result, attempts[done])}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)


def _read_results(kept: Path) -> dict[str, Result]:
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    results = [Result(**json.loads(line)) for line in lines]
    return {result.key: result for result in results}


def _line(result: Result, mutant: Mutant) -> str:
    return f"{result.outcome:9} {mutant.path}:{mutant.line} {mutant.where}: {mutant.change}"


def _tell(drawn: list[Mutant], known: dict[str, Result]) -> int:
    """Print the surviving mutants; return the exit status."""
    explained = " ".join(EXPLAINED.read_text("utf-8").split())
    alive = [each for each in drawn if known[each.key].outcome != "killed"]
    open_questions = [each for each in alive if each.title not in explained]
    for each in open_questions:
        print(f"not explained: {_line(known[each.key], each)}")
    counted = f"{len(drawn) - len(alive)} of {len(drawn)} mutants were noticed by a test"
    print(f"{counted}, {len(alive) - len(open_questions)} more are explained, {len(open_questions)} are not")
    return 1 if open_questions else 0


if __name__ == "__main__":
    sys.exit(main())
