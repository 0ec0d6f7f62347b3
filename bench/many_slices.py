"""Request many slices at once: `python bench/many_slices.py [--slices=200] [--create_seconds=20]`.

Runs a real daemon on a folder, and a real emulator that boots no hosts and takes --create_seconds per creation. Submits
all jobs at once, one slice each. Prints the time from the first submission until the last node is READY, and the part
of it that is not creation. With --within it fails beyond that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bastion.core.bucket import keys
from bastion.core.model import job_spec
from bastion.core.model.job_spec import JobOptions
from bastion.emulators.tpu.address import locate
from bastion.wiring.local_home import LocalHome
from bastion.wiring.roots import open_root

USER = "bench"
BASTION = "bench-bastion"
PATIENCE_SECONDS = 300.0
QUOTA = """
[toml-schema]
version = "1"
[total_resources]
v4 = 1000000
[project_membership]
default = ["bench"]
[project_resources.default]
v4 = 1.0
"""


@contextlib.contextmanager
def program(*arguments: str, log: Path, home: Path) -> Iterator[None]:
    """Run `bastion ...` in the background, and end it afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "bastion.cli.main", *arguments],
            stdout=output,
            stderr=output,
            env={**os.environ, "BASTION_HOME": str(home)},
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def events(folder: Path, kind: str) -> dict[str, float]:
    """Return when nodes had that event, by name."""
    try:
        lines = (folder / "events.jsonl").read_text().splitlines()
    except OSError:
        return {}
    found = [json.loads(line) for line in lines]
    return {each["name"]: each["at"] for each in found if each["event"] == kind}


def until(done: Callable[[], object], what: str) -> None:
    """Poll until `done`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not happen within {PATIENCE_SECONDS:g} s")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=200)
    parser.add_argument("--create_seconds", type=float, default=20.0)
    parser.add_argument("--within", type=float, default=0.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as programs:
        home = LocalHome(Path(folder) / "home")
        home.run_dir.mkdir(parents=True)
        root = f"{folder}/bucket/{BASTION}"
        store = open_root(root)
        store.put(keys.PROJECT_QUOTAS, QUOTA.encode(), generation=0)
        options = [f"--create_seconds={given.create_seconds}", "--no_boot", f"--state_dir={home.emulator_dir}"]
        programs.enter_context(program("emulator", "tpu", *options, log=home.run_dir / "emulator.log", home=home.path))
        until(lambda: locate(home.emulator_dir), "the emulator")
        programs.enter_context(
            program("daemon", "run", f"--root={root}", log=home.run_dir / "daemon.log", home=home.path)
        )
        until(lambda: store.head(keys.STATUS), "the daemon")

        def submit(name: str) -> None:
            spec = job_spec.new(
                name=name,
                bastion=BASTION,
                command="true",
                user_id=USER,
                project_id="default",
                now=time.time(),
                options=JobOptions(instance_type="tpu-v4-8"),
            )
            store.put(keys.active(name), spec.to_bytes(), generation=0)

        submit("first")  # packs the agent, which a bastion does once
        until(lambda: events(home.emulator_dir, "accepted"), "the first slice")
        first = set(events(home.emulator_dir, "accepted"))
        began = time.time()
        for number in range(given.slices):
            submit(f"job-{number}")
        submitted = time.time()
        until(lambda: len(events(home.emulator_dir, "ready")) >= given.slices + 1, "the last slice")
        accepted = {n: at for n, at in events(home.emulator_dir, "accepted").items() if n not in first}
        ready = {n: at for n, at in events(home.emulator_dir, "ready").items() if n not in first}
    took = max(ready.values()) - began
    print(f"{len(ready)} slices, each of which takes {given.create_seconds:g} s to create")
    print(f"submitted after {submitted - began:.1f} s, all asked for after {max(accepted.values()) - began:.1f} s")
    print(f"all READY after {took:.1f} s, {took - given.create_seconds:.1f} s more than one creation")
    if given.within and took > given.within:
        raise SystemExit(f"{given.within:g} s are the most")


if __name__ == "__main__":
    main()
