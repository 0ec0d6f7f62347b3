"""Write or check the licenses of all locked packages: `python tools/licenses.py --uv=PROGRAM`, or `--check`.

`docs/reference/licenses.md` says what each package declares. `--check` reads that page and the lock files, and what is
installed here in a locked version; it needs no network.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bastion.adapters import lock_files  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "licenses.md"
# Permissive ones, and the MPL, which asks only that changes to its own files are published; we change none.
ALLOWED = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MIT-CMU"),
        *("MPL-2.0", "PSF-2.0", "Unlicense", "Zlib"),
    }
)
# Other spellings in the metadata of packages that declare no SPDX expression.
SPELLINGS = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
}
# "BSD" names several licenses: these were read in the license files of the wheels.
READ = {
    "google-re2": "BSD-3-Clause",
    "pyasn1-modules": "BSD-2-Clause",
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
    "scipy": "BSD-3-Clause",
}
# Between them, they install every locked package.
_PYTHONS = ("3.10", "3.14")
_MACHINE = "x86_64-manylinux_2_28"
_ROW = re.compile(
    r"^\| (?P<name>[a-z0-9-]+) \| (?P<versions>\d[^|]*) \| (?P<license>[^|]*) \| (?P<locks>[^|]+) \|$", re.M
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A package; several versions if they differ by Python.

    `license` is the SPDX expression of the newest version, empty if unknown.
    """

    versions: tuple[str, ...]
    license: str
    locks: tuple[str, ...]


def declared(name: str, metadata: Message) -> str:
    """Return the SPDX expression that a package's metadata declare, or an empty text."""
    if name in READ:
        return READ[name]
    classifiers = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier") or [] if c.startswith("License")]
    if metadata.get("License-Expression"):
        return str(metadata["License-Expression"])
    for text in (metadata.get("License") or "", *classifiers):
        license = SPELLINGS.get(text.lower(), text)
        if license in ALLOWED:
            return license
    return ""


def allowed(expression: str) -> bool:
    """Whether the policy allows an SPDX expression: all that AND joins, and one of what OR joins."""
    parts = [re.split(r"\s+OR\s+", part) for part in re.split(r"\s+AND\s+", expression)]
    return all(any(choice.strip("() ") in ALLOWED for choice in part) for part in parts)


def locked(folder: Path) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the versions of each locked package, and the lock files that have it."""
    versions: dict[str, dict[str, None]] = {}
    locks: dict[str, dict[str, None]] = {}
    for path in sorted(folder.glob(f"*{lock_files.SUFFIX}")):
        for entry in lock_files.parse(path.read_text("utf-8")):
            versions.setdefault(entry.name, {})[entry.version] = None
            locks.setdefault(entry.name, {})[path.stem] = None
    return {name: (tuple(versions[name]), tuple(locks[name])) for name in sorted(versions)}


def read(page: str) -> dict[str, Row]:
    return {
        match["name"]: Row(
            versions=tuple(match["versions"].split(", ")),
            license=match["license"].strip(),
            locks=tuple(match["locks"].split(", ")),
        )
        for match in _ROW.finditer(page)
    }


def render(rows: Mapping[str, Row]) -> str:
    lines = [
        "# Licenses",
        "",
        "What the packages that a bastion's machines install declare as their license, as SPDX expressions.",
        "`make lock` writes this page from the metadata of the locked wheels.",
        "",
        "These licenses are allowed:",
        f"{', '.join(sorted(ALLOWED))}.",
        "Any other license, and a package that declares none, fails `make lint`. Wheels may bundle libraries with",
        "licenses of their own, which their files name: numpy and scipy bring GCC's Fortran runtime, under the GPL",
        "with its runtime library exception.",
        "",
        "| package | version | license | lock file |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {', '.join(row.versions)} | {row.license} | {', '.join(row.locks)} |" for name, row in rows.items()
    ]
    return "\n".join(lines) + "\n"


def problems(page: str, folder: Path, installed: Iterable[importlib.metadata.Distribution]) -> list[str]:
    """Return what is wrong, a sentence each."""
    rows, found = read(page), []
    for name, (versions, locks) in locked(folder).items():
        row = rows.pop(name, None)
        if row is None or (row.versions, row.locks) != (versions, locks):
            found.append(f"{PAGE.name} does not have {name} {', '.join(versions)}; run `make lock`")
        elif not row.license:
            found.append(
                f"{name} declares no license; read it, and list it in READ in tools/licenses.py, or do without it"
            )
        elif not allowed(row.license):
            found.append(f"{name} has the license {row.license}, which the policy does not allow; do without it")
    found += [f"{PAGE.name} has {name}, which is not locked; run `make lock`" for name in rows]
    rows = read(page)
    for distribution in installed:
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        row = rows.get(name)
        if row and distribution.version == row.versions[-1] and declared(name, distribution.metadata) != row.license:
            found.append(f"{name} {distribution.version} does not declare {row.license}; run `make lock`")
    return found


def write(uv: str, folder: Path) -> None:
    """Install the locked wheels for two Pythons into scratch folders, and read their metadata."""
    licenses: dict[str, str] = {}
    paths = sorted(folder.glob(f"*{lock_files.SUFFIX}"))
    with tempfile.TemporaryDirectory() as scratch:
        for python in _PYTHONS:
            target = Path(scratch) / python
            command = [uv, "--no-python-downloads", "pip", "install", "--quiet", f"--target={target}"]
            command += [f"--python-version={python}", f"--python-platform={_MACHINE}", "--no-deps"]
            command += ["--only-binary=:all:", "--require-hashes", *(f"--requirements={path}" for path in paths)]
            subprocess.run(command, check=True)
            for distribution in importlib.metadata.distributions(path=[str(target)]):
                name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
                licenses[name] = declared(name, distribution.metadata)
    rows = {
        name: Row(versions=versions, license=licenses.get(name, ""), locks=locks)
        for name, (versions, locks) in locked(folder).items()
    }
    PAGE.write_text(render(rows), "utf-8")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is wrong")
    parser.add_argument("--uv", default="uv", help="the program uv")
    arguments = parser.parse_args(argv)
    if not arguments.check:
        write(arguments.uv, lock_files.FOLDER)
    found = problems(PAGE.read_text("utf-8"), lock_files.FOLDER, importlib.metadata.distributions())
    for problem in found:
        sys.stderr.write(problem + "\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
