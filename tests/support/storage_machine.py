"""One home, one storage endpoint, one daemon, and the CLI as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bastion.wiring.local import down
from bastion.wiring.local_home import LocalHome
from bastion.wiring.local_starter_quota import starter_quota
from tests.support.local_root import USER
from tests.support.storage_process import StorageProcess

BASTION = (sys.executable, "-m", "bastion.cli.main")


class StorageMachine:
    """A machine on which storage is an endpoint's, and jobs find it.

    Attributes:
        buckets: The folder whose subfolders the endpoint serves.
        home: What `$BASTION_HOME` is.
        environment: Of every process here.
    """

    def __init__(self, folder: Path, *, bucket: str, root: str) -> None:
        self.buckets = folder / "buckets"
        self.storage = StorageProcess(self.buckets, bucket=bucket)
        self.home = LocalHome(folder / "home")
        self.home.run_dir.mkdir(parents=True)
        self.environment = {
            **os.environ,
            "BASTION_HOME": str(self.home.path),
            "BASTION_ROOT": root,
            "USER": USER,
            "LOGNAME": USER,
        }
        self.daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.storage.start()
        self.environment["STORAGE_EMULATOR_HOST"] = self.storage.url
        quota = self.home.path / "quota.toml"
        quota.write_bytes(starter_quota(USER))
        uploaded = self.bastion("quota", "upload", str(quota))
        assert uploaded.returncode == 0, uploaded.stderr
        with (self.home.path / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen(
                [*BASTION, "daemon", "run", "--tick_seconds=0.3", "--bastion_host_jobs=as-daemon"],
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        if self.daemon is not None:
            self.daemon.terminate()
            self.daemon.wait(60)
        down(self.home, say=lambda _: None)
        self.storage.stop()

    def bastion(self, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*BASTION, *arguments],
            env=self.environment,
            cwd=folder or self.home.path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
