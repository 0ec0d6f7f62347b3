"""A ROOT on this machine with daemons as real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field

from bastion.ports import ObjectStore
from bastion.wiring.local import LocalHome
from tests.support.job_specs import new_spec

USER = "tester"


@dataclass
class LocalRoot:
    """One ROOT in the home, with the daemons that a test starts for it."""

    home: LocalHome
    url: str
    store: ObjectStore
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_daemon(self, *script: str) -> subprocess.Popen[bytes]:
        """An ordinary daemon, or `script` with ROOT and HOME as its first arguments."""
        if script:
            command = [sys.executable, script[0], self.url, str(self.home.path), *script[1:]]
        else:
            run = ("daemon", "run", f"--root={self.url}", "--tick_seconds=0.2")
            command = [sys.executable, "-m", "bastion.cli.main", *run]
        log = (self.home.path / "daemons.log").open("ab")
        environment = {**os.environ, "BASTION_HOME": str(self.home.path)}
        daemon = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.daemons.append(daemon)
        return daemon

    def submit(self, name: str, command: str, *, instance_type: str = "") -> None:
        spec = new_spec(
            name,
            bastion="e2e-bastion",
            command=command,
            user_id=USER,
            project_id="default",
            now=time.time(),
            instance_type=instance_type,
        )
        self.store.put(f"jobs/active/{name}", spec.to_bytes(), generation=0)
