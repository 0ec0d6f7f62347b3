"""Write or check the lock files: `python tools/lock.py --uv=PROGRAM [--upgrade=NAME|all]`, or `--check`.

In `bastion/requirements`, `base.lock` has what every bastion installs, each other file what an extra of pyproject.toml
adds, and `build.lock` what builds Bastion's own wheel. uv resolves them for all Pythons and machines at once. Versions
stay as they are unless pyproject.toml or `--upgrade` asks for others. The header of each file has a digest of
pyproject.toml's requirements and one of the entries, so that `--check` needs no network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bastion.adapters import lock_files  # noqa: E402
from bastion.adapters.lock_files import SUFFIX, Entry  # noqa: E402

BASE, BUILD = "base", "build"
# Extras of people's own machines, not of a bastion's.
UNLOCKED = frozenset({"dev", "examples", "plot", "tensorboard", "torch"})
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
REMEDY = "run `make lock` and commit what it writes"


class Project:
    """What pyproject.toml requires."""

    def __init__(self, root: Path) -> None:
        self.file = root / "pyproject.toml"
        self.folder = root / "bastion" / "requirements"
        content: dict[str, Any] = tomli.loads(self.file.read_text("utf-8"))
        project = content["project"]
        self.oldest: str = project["requires-python"].removeprefix(">=")
        self.needs: Mapping[str, list[str]] = {
            BASE: project["dependencies"],
            **{name: needs for name, needs in project["optional-dependencies"].items() if name not in UNLOCKED},
            BUILD: content["build-system"]["requires"],
        }
        self.extras = [name for name in self.needs if name not in (BASE, BUILD)]

    def path(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"

    def digest(self) -> str:
        inputs = {"python": self.oldest, "needs": {name: sorted(needs) for name, needs in self.needs.items()}}
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()

    def entries(self, name: str) -> list[Entry]:
        path = self.path(name)
        return lock_files.parse(path.read_text("utf-8")) if path.exists() else []


def page(project: Project, name: str, entries: Sequence[Entry]) -> str:
    what = {
        BASE: "What every bastion installs",
        BUILD: "What builds Bastion's own wheel",
    }.get(name, f"What bastion[{name}] installs besides base.lock")
    return (
        f"# {what}; `make lock` writes it.\n"
        f"# requirements in pyproject.toml: {project.digest()}\n"
        f"# entries below: {lock_files.digest(entries)}\n" + lock_files.render(entries)
    )


def problems(root: Path) -> list[str]:
    """Return what is wrong with the lock files, a sentence each."""
    project = Project(root)
    found = []
    for name in project.needs:
        path = project.path(name)
        label = path.relative_to(root)
        if not path.exists():
            found.append(f"{label} is missing; {REMEDY}")
            continue
        text = path.read_text("utf-8")
        header = dict(re.findall(r"^# (.+): ([0-9a-f]{64})$", text, re.MULTILINE))
        if header.get("requirements in pyproject.toml") != project.digest():
            found.append(f"{label} is stale: pyproject.toml has other requirements; {REMEDY}")
        try:
            if header.get("entries below") != lock_files.digest(project.entries(name)):
                found.append(f"{label} was edited: its entries are not those that `make lock` wrote; {REMEDY}")
        except ValueError as error:
            found.append(f"{label}: {error}; {REMEDY}")
    unknown = {path.name for path in project.folder.iterdir()} - {project.path(name).name for name in project.needs}
    return found + [f"{name} is the lock file of no extra; remove it" for name in sorted(unknown)]


class Resolver:
    """uv, in a scratch folder."""

    def __init__(self, uv: str, project: Project, scratch: Path) -> None:
        self._uv, self._project, self._scratch = uv, project, scratch

    def compile(self, source: Path, output: str, *options: str, kept: Sequence[Entry] = ()) -> list[Entry]:
        """Resolve; versions of `kept` are preferred."""
        path = self._scratch / output
        path.write_text(lock_files.render(kept), "utf-8")
        self._run(
            *("pip", "compile", str(source), f"--output-file={path}", "--universal", "--generate-hashes"),
            *(f"--python-version={self._project.oldest}", "--only-binary=:all:", "--no-header", "--no-annotate"),
            *options,
        )
        return lock_files.parse(path.read_text("utf-8"))

    def try_everywhere(self, entries: Iterable[Entry]) -> None:
        """Fail unless every package has a wheel for each Python and machine."""
        path = self._scratch / "try.txt"
        path.write_text(lock_files.render(entries), "utf-8")
        for python in PYTHONS:
            for machine in MACHINES:
                self._run(
                    *("pip", "install", "--dry-run", f"--target={self._scratch / 'none'}", "--only-binary=:all:"),
                    *("--require-hashes", f"--python-version={python}", f"--python-platform={machine}"),
                    f"--requirements={path}",
                )

    def _run(self, *arguments: str) -> None:
        words = [self._uv, "--no-python-downloads", "--no-progress", *arguments]
        done = subprocess.run(words, cwd=self._scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"uv {' '.join(arguments[:2])} failed:\n{done.stderr}")


def write(project: Project, uv: str, upgrade: str) -> None:
    """Resolve everything at once, then each extra within that, so that any extras can be installed together."""
    upgrades = [] if not upgrade else ["--upgrade"] if upgrade == "all" else [f"--upgrade-package={upgrade}"]
    kept = {entry for name in project.needs if name != BUILD for entry in project.entries(name)}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        resolver = Resolver(uv, project, scratch)
        extras = [f"--extra={extra}" for extra in project.extras]
        everything = resolver.compile(project.file, "all.txt", *extras, *upgrades, kept=sorted(kept))
        pins = scratch / "pins.txt"
        lines = (f"{e.name}=={e.version}{' ; ' if e.marker else ''}{e.marker}\n" for e in everything)
        pins.write_text("".join(lines), "utf-8")
        within = f"--constraints={pins}"
        base = resolver.compile(project.file, "base.txt", within)
        found = {BASE: base}
        for extra in project.extras:
            whole = resolver.compile(project.file, f"{extra}.txt", f"--extra={extra}", within)
            found[extra] = [entry for entry in whole if entry not in base]
        building = scratch / "build.in"
        building.write_text("".join(f"{need}\n" for need in project.needs[BUILD]), "utf-8")
        found[BUILD] = resolver.compile(building, "build.txt", *upgrades, kept=project.entries(BUILD))
        resolver.try_everywhere(everything)
        resolver.try_everywhere(found[BUILD])
    project.folder.mkdir(exist_ok=True)
    for old in project.folder.glob(f"*{SUFFIX}"):
        old.unlink()
    for name, entries in found.items():
        project.path(name).write_text(page(project, name, entries), "utf-8")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is stale")
    parser.add_argument("--uv", default="uv", help="the program uv")
    parser.add_argument("--upgrade", default="", help="a package, or `all`")
    arguments = parser.parse_args(argv)
    if not arguments.check:
        write(Project(ROOT), arguments.uv, arguments.upgrade)
    found = problems(ROOT)
    for problem in found:
        sys.stderr.write(problem + "\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
