"""Run the acceptance test of the encrypting proxy on this machine: training with encrypted checkpoints.

A small transformer (`fuji.py`) runs on an emulated v4-32 slice and saves to `gs://checkpoints` through the proxy. After
a few saves, one of its hosts crashes, and the next attempt continues from the newest checkpoint. The same runs without
encryption. Then every object in the bucket is searched: only the run without encryption may leave plaintext. Prints
the times of saving and restoring, like the table of the test that this one follows.

    python examples/encrypted/acceptance.py [--width=256] [--layers=4] [--rounds=1]

Needs `pip install 'bastion[examples]' gcsfs`. Exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
KEY = "projects/acceptance/locations/global/keyRings/proxy/cryptoKeys/proxy-kek"
BUCKET = "checkpoints"
# The first bytes of an unencrypted checkpoint's databases, and words of its descriptions. Shorter ones occur in
# ciphertext by chance: four bytes once in 4 GiB.
BEGINNINGS = (b"\x0c\xdb\x3a\x2a", b"\x0c\xdb\x20\xde")
WORDS = (b"tree_metadata", b"weights", b"item_handlers")
SAVED = re.compile(r"Serialization of \S+ completed in ([\d.]+) seconds")
RESTORED = re.compile(r"Restored state from ckpt at step (\d+) in ([\d.]+) seconds")
BEGAN = re.compile(r"begins at step (\d+): (\d+) MiB")


class Machine:
    """A bastion, a storage endpoint and a keyring, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.buckets = folder / "cloud"
        self.keyring = folder / "keyring.json"
        self._environment = {**os.environ, "BASTION_HOME": str(folder / "home")}
        for name in ("https_proxy", "HTTPS_PROXY", "STORAGE_EMULATOR_HOST", "BASTION_ROOT"):
            self._environment.pop(name, None)
        (folder / "home").mkdir()
        self._endpoint = subprocess.Popen(
            [*self._bastion, "emulator", "gcs", f"--dir={self.buckets}", f"--bucket={BUCKET}"],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._endpoint.stdout is not None
        self.url = ""
        while not self.url:
            line = self._endpoint.stdout.readline()
            if not line:
                raise SystemExit("the storage endpoint did not start")
            self.url = line.partition("STORAGE_EMULATOR_HOST=")[2].strip()
        self.run("proxy", "keyring", "create", f"--key={KEY}", str(self.keyring))

    @property
    def _bastion(self) -> list[str]:
        return [sys.executable, "-c", "import sys; from bastion.cli.main import main; sys.exit(main())"]

    def run(self, *words: str) -> str:
        """Run a bastion command; return what it prints."""
        done = subprocess.run(
            [*self._bastion, *words], env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"bastion {words[0]} {words[1]} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def launch(self, name: str, *, encrypted: bool, arguments: list[str]) -> None:
        variables = {
            "GCS_PROXY_KEYRING": str(self.keyring),
            "GCS_PROXY_UPSTREAM": self.url,
            "GCS_PROXY_DISABLE_ENCRYPTION": "false" if encrypted else "true",
            # The endpoint needs no credentials, but clients would look for some.
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any",
            "FSSPEC_GS": json.dumps({"token": "anon"}),
        }
        self.run(
            "launch", f"--name={name}", "--instance_type=tpu-v4-32", "--bundle=none", f"--proxy={BUCKET}:{KEY}",
            *[f"--env={key}={value}" for key, value in variables.items()],
            "--", "python3", str(HERE / "fuji.py"), f"--checkpoints=gs://{BUCKET}/{name}", *arguments,
        )  # fmt: skip

    def crash(self, name: str) -> None:
        """Crash the machine of one host of the job's present attempt."""
        from bastion.core.bucket import keys
        from bastion.emulators.tpu.faults import Faults
        from bastion.wiring.local import LocalHome

        listed = json.loads(self.run("list", "--output=json"))
        run = next(f"{job['uid']}-{job['attempt']}" for job in listed["jobs"] if job["name"] == name)
        Faults(LocalHome(self.folder / "home").emulator_dir / "faults").crash(keys.gang(run), worker=1)

    def output(self, name: str) -> str:
        return self.run("logs", name, "--worker=0")

    def close(self) -> None:
        subprocess.run([*self._bastion, "local", "down"], env=self._environment, capture_output=True, check=False)
        self._endpoint.terminate()
        self._endpoint.wait()


def wait_for(what: str, found: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(1)


def train(machine: Machine, name: str, *, encrypted: bool, arguments: list[str]) -> tuple[list[float], float]:
    """Run one training, killed once; return the seconds of each save after the first, and of the restore."""
    machine.launch(name, encrypted=encrypted, arguments=arguments)
    wait_for(f"three checkpoints of {name}", lambda: len(SAVED.findall(machine.output(name))) >= 3, 300)
    machine.crash(name)
    wait_for(f"{name} to go on", lambda: RESTORED.search(machine.output(name)), 300)
    wait_for(f"the end of {name}", lambda: '"step":' in machine.output(name), 300)
    output = machine.output(name)
    step, seconds = RESTORED.findall(output)[-1]
    began = int(BEGAN.findall(output)[-1][0])
    if began != int(step) or began == 0:
        raise SystemExit(f"{name} restored step {step} and began at {began}")
    # The first save of a process also compiles and connects.
    return [float(text) for text in SAVED.findall(output)][1:], float(seconds)


def plaintext_in(folder: Path) -> list[Path]:
    """List the files with content that only an unencrypted checkpoint has."""

    def tells(content: bytes) -> bool:
        return content.startswith(BEGINNINGS) or any(word in content for word in WORDS)

    return [path for path in folder.rglob("*") if path.is_file() and tells(path.read_bytes())]


def main() -> int:
    arguments = argparse.ArgumentParser(description="The proxy's acceptance test; see the docstring.")
    arguments.add_argument("--width", type=int, default=256, help="256 makes a state of 48 MiB, 512 with 8 layers 326")
    arguments.add_argument("--layers", type=int, default=4)
    arguments.add_argument("--steps", type=int, default=30)
    arguments.add_argument("--rounds", type=int, default=1, help="trainings of each kind, in turn")
    arguments.add_argument("--keep", action="store_true", help="leave the folder with everything behind")
    options = arguments.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="acceptance-"))
    machine = Machine(folder)
    times: dict[bool, tuple[list[float], list[float]]] = {True: ([], []), False: ([], [])}
    try:
        words = [f"--steps={options.steps}", "--save_every=5", f"--width={options.width}", f"--layers={options.layers}"]
        for turn in range(options.rounds):
            for encrypted in (True, False):
                name = f"{'encrypted' if encrypted else 'plain'}-{turn}"
                saves, restore = train(machine, name, encrypted=encrypted, arguments=words)
                times[encrypted][0].extend(saves)
                times[encrypted][1].append(restore)
        lake = machine.buckets / BUCKET
        leaks = [path for turn in range(options.rounds) for path in plaintext_in(lake / f"encrypted-{turn}")]
        known = [path for turn in range(options.rounds) for path in plaintext_in(lake / f"plain-{turn}")]
        size = max(BEGAN.findall(machine.output("plain-0")), key=lambda found: int(found[1]))[1]
    finally:
        machine.close()
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"state of {size} MiB, four hosts\n")
    print("|| save, mean (saves) | restore, mean |\n|--|--|--|")
    for encrypted, label in ((True, "encryption"), (False, "no encryption")):
        saves, restores = times[encrypted]
        print(f"| {label} | {statistics.mean(saves):.2f} s ({len(saves)}) | {statistics.mean(restores):.2f} s |")
    print(
        f"\nratio: save {statistics.mean(times[True][0]) / statistics.mean(times[False][0]):.2f}, "
        f"restore {statistics.mean(times[True][1]) / statistics.mean(times[False][1]):.2f}"
    )
    for path in leaks:
        print(f"plaintext: {path.relative_to(folder)}")
    print(f"files with plaintext: {len(leaks)} where encrypted, {len(known)} where encryption was off")
    return 1 if leaks or not known else 0


if __name__ == "__main__":
    raise SystemExit(main())
