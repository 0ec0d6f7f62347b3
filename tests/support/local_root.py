"""A ROOT on this machine with daemons as real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from bastion.core.bucket import keys
from bastion.core.errors import NotFound
from bastion.ports import ObjectStore
from bastion.wiring.local_home import LocalHome
from tests.support.job_specs import new_spec
from tests.support.stored_logs import stored_text

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
            run = ("daemon", "run", f"--root={self.url}", "--tick_seconds=0.2", "--bastion_host_jobs=as-daemon")
            command = [sys.executable, "-m", "bastion.cli.main", *run]
        log = (self.home.path / "daemons.log").open("ab")
        environment = {**os.environ, "BASTION_HOME": str(self.home.path)}
        daemon = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.daemons.append(daemon)
        return daemon

    def submit(self, name: str, command: str, *, instance_type: str = "", **options: Any) -> None:
        spec = new_spec(
            name,
            bastion="e2e-bastion",
            command=command,
            user_id=USER,
            now=time.time(),
            instance_type=instance_type,
            **{"project_id": "default", **options},
        )
        self.store.put(f"jobs/active/{name}", spec.to_bytes(), generation=0)


class RootJob:
    """A job of a root, as the bucket shows it."""

    def __init__(self, root: LocalRoot, name: str, command: str, *, instance_type: str = "", **options: Any) -> None:
        self.name, self.store = name, root.store
        root.submit(name, command, instance_type=instance_type, **options)

    def result(self) -> dict[str, Any] | None:
        try:
            result: dict[str, Any] = json.loads(self.store.get(keys.complete(self.name)).data)["result"]
        except NotFound:
            return None
        return result

    def runs(self) -> list[str]:
        """Runs that have a log."""
        logs = keys.worker_logs(self.name)
        return sorted({meta.key.removeprefix(logs).split("/")[0] for meta in self.store.list(logs)})

    def output(self, run: str, host: int = 0) -> list[str]:
        text = stored_text(self.store, keys.log_segments(self.name, run, host))
        return [line.split(" ", 3)[3] for line in text.splitlines()]
