"""The coverage-guided fuzzer: every target in a process of its own, by turns, until the time is over.

    make fuzz SECONDS=3600 [TARGETS=spec,status]

Atheris (libFuzzer for Python) keeps the inputs that reach new branches of `bastion`, `quota` and `scheduler` in
`build/fuzz/corpus/<target>`, so that the next run goes on from them. What showed a fault is in
`build/fuzz/found/<target>`; move it to `tests/fuzz/found/<target>`, where the tests replay it, and mend the fault.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NoReturn

from tests.fuzz.found_inputs import keep, place_of
from tests.fuzz.mangling import mangled
from tests.fuzz.target import INPUT_MAX_BYTES, Target

BUILD = Path("build/fuzz")
_MEMORY_BYTES = 3 * 1024**3
_INPUT_SECONDS = 30
_RUNS = re.compile(r"stat::number_of_executed_units: (\d+)")
_REACHED = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together")
    parser.add_argument("--targets", default="", help="names, separated by commas; default: all")
    given = parser.parse_args(arguments)
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed; run `make fuzz`", file=sys.stderr)
        return 1
    import atheris

    # Once, for all targets: it takes ten times as long as without instrumentation.
    with atheris.instrument_imports(include=["bastion", "quota", "scheduler"]):
        from tests.fuzz.targets import BY_NAME
    names = given.targets.split(",") if given.targets else list(BY_NAME)
    seconds = max(2, given.seconds // len(names))
    figures = {}
    for name in names:
        figures[name] = found = _one(BY_NAME[name], seconds)
        print(
            f"{name}: {found['inputs']} inputs, {found['branches']} branches, {found['corpus']} kept, "
            f"{found['found']} found",
            flush=True,
        )
        (BUILD / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if any(found["found"] for found in figures.values()) else 0


def _one(target: Target, seconds: int) -> dict[str, int]:
    """Fuzz one target; return how many inputs it got, the branches that they reached, and how many faults it showed."""
    corpus, found, log = BUILD / "corpus" / target.name, BUILD / "found" / target.name, BUILD / f"{target.name}.log"
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-home-") as home:
        child = os.fork()
        if not child:
            _inside(target, seconds, home, log)
        deadline = time.monotonic() + seconds + 120
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.2)
    said = log.read_text("utf-8", "replace")
    reached = _REACHED.findall(said)
    return {
        "seconds": seconds,
        "inputs": sum(map(int, _RUNS.findall(said)[-1:])),
        "branches": int(reached[-1][0]) if reached else 0,
        "corpus": len(list(corpus.iterdir())),
        "found": len(list(found.iterdir())),
    }


def _inside(target: Target, seconds: int, home: str, log: Path) -> NoReturn:
    """Fuzz in this process, which libFuzzer ends."""
    import atheris

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # No credentials, and no files of this user.
    for name in [name for name in os.environ if name not in ("PATH", "LANG")]:
        del os.environ[name]
    os.environ |= {"HOME": home, "TMPDIR": home}
    tempfile.tempdir = home
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    for seed in target.seeds():
        keep(BUILD / "corpus", target.name, seed)
    places: set[str] = set()

    def one(data: bytes) -> None:
        try:
            target.check(data)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is a fault, and the next input is tried
            place = place_of(error)
            if place not in places:
                places.add(place)
                path = keep(BUILD / "found", target.name, data)
                print(f"FOUND {path}: {place}: {str(error)[:300]!r}", flush=True)

    def mutated(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        made = atheris.Mutate(data, max_size) if random.random() < 0.4 else mangled(random, data, target.form)
        return made[:max_size]

    found = BUILD / "found" / target.name
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_MAX_BYTES}",
        f"-timeout={_INPUT_SECONDS}",
        "-rss_limit_mb=0",
        "-print_final_stats=1",
        "-len_control=0",
        f"-artifact_prefix={found}/",
        "-seed=1",
    ]
    atheris.Setup(["fuzz", *options, str(BUILD / "corpus" / target.name)], one, custom_mutator=mutated)
    atheris.Fuzz()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
