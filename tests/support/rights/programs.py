"""The daemon and the command line beside a storage endpoint that knows who asks, each with a token of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bastion.wiring.local import down
from bastion.wiring.local_home import LocalHome
from tests.support.rights.deployment import INBOXES, opened, terraform
from tests.support.rights.how_to import BASTION, BUCKET, PRIVATE
from tests.support.rights.stage import Stage

PROGRAM = (sys.executable, "-m", "bastion.cli.main")
QUOTA_ROOT = f"--quota_root=gs://{PRIVATE}/{BASTION}"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def grant_all(stage: Stage) -> None:
    module = terraform()
    stage.grant(module.folders, module.granted)


@contextmanager
def running(folder: Path, grant: Callable[[Stage], None] = grant_all) -> Iterator[Run]:
    """A daemon, and a function that runs the CLI as a caller; `login` is his name on his machine."""
    home = LocalHome(folder / "home")
    home.run_dir.mkdir(parents=True)
    with opened(folder / "buckets", terraform(inboxes=INBOXES).roles) as stage:
        grant(stage)

        def environment(caller: str, login: str = "alice") -> dict[str, str]:
            return {
                **os.environ,
                "BASTION_HOME": str(home.path),
                "BASTION_ROOT": f"gs://{BUCKET}/{BASTION}",
                "GOOGLE_AUTH_TOKEN_FOR_TESTING": caller,
                "LOGNAME": login,
                "STORAGE_EMULATOR_HOST": stage.url,
                "USER": login,
            }

        def run(caller: str, *arguments: str, login: str = "alice") -> subprocess.CompletedProcess[str]:
            command = [*PROGRAM, *arguments]
            return subprocess.run(
                command, env=environment(caller, login), capture_output=True, text=True, timeout=120, check=False
            )

        with (folder / "daemon.log").open("ab") as log:
            command = [
                *PROGRAM,
                "daemon",
                "run",
                QUOTA_ROOT,
                "--slices=none",
                "--tick_seconds=0.3",
                "--bastion_host_jobs=as-daemon",
            ]
            daemon = subprocess.Popen(command, env=environment("daemon"), stdout=log, stderr=log)
        try:
            yield run
        finally:
            daemon.terminate()
            daemon.wait(60)
            down(home, say=lambda _: None)
