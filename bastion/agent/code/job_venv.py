"""Make a virtual environment for the job that also sees all packages of this Python.

Usage: python3 job_venv.py FOLDER [CODE [NAME=MODULE:OBJECT...]]. The job's Python runs this program. Packages in CODE
become importable in place, and each NAME becomes a script. Needs only the standard library of Python 3.8, without
`ensurepip`: an installed `pip` installs into the environment.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import site
import subprocess
import sys
import venv
from pathlib import Path


def make(folder: Path, code: Path | None, programs: dict[str, str]) -> None:
    venv.EnvBuilder(system_site_packages=True, symlinks=True, with_pip=False).create(folder)
    python = folder / "bin" / "python3"
    seen = []
    if sys.prefix != sys.base_prefix:
        # If this Python belongs to an environment, a nested one would see only the packages of its base.
        seen = site.getsitepackages()
    lines = [f"import site; site.addsitedir({path!r})" for path in seen]
    if code is not None:
        lines += [str(path) for path in (code, code / "src") if path.is_dir()]
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    names = folder / "lib" / version / "site-packages" / "job.pth"
    names.write_text("".join(line + "\n" for line in lines), "utf-8")
    if importlib.util.find_spec("pip") is None:
        # If pip is missing too, Python itself reports it.
        subprocess.run([str(python), "-m", "ensurepip"], check=False, capture_output=True)
    # A pip found elsewhere would install elsewhere.
    start = f"exec {shlex.quote(str(python))}"
    for name in ("pip", "pip3"):
        _write_program(folder / "bin" / name, f'{start} -m pip "$@"')
    for name, place in programs.items():
        module, _, attribute = place.partition(":")
        call = f"import sys, importlib; sys.argv[0] = {name!r}; place = importlib.import_module({module!r})"
        call += f"; sys.exit(place.{attribute}())"
        _write_program(folder / "bin" / name, f'{start} -c {shlex.quote(call)} "$@"')


def _write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", "utf-8")
    path.chmod(0o755)


if __name__ == "__main__":
    make(
        Path(os.path.abspath(sys.argv[1])),  # noqa: PTH100 - keeps links as they are
        Path(sys.argv[2]) if len(sys.argv) > 2 else None,
        dict(argument.split("=", 1) for argument in sys.argv[3:]),
    )
