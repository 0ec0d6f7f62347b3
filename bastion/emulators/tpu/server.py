"""The emulator: its state folder, its lock, its token, its gRPC server.

Invariants:

* One emulator per state folder (`flock`), on 127.0.0.1; every call needs the folder's token.
* `emulator.json` exists only while the server answers.
* A restart keeps port and token, so that connected clients continue.
* `close` (SIGTERM) ends every VM; a crash (SIGKILL) ends none, and the next start adopts them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from bastion.core.errors import Refused
from bastion.emulators.state_folder import hold, make_private, read_document, this_process, write_private
from bastion.emulators.tpu.address import ADDRESS_FILE, EmulatorAddress, publish
from bastion.emulators.tpu.fleet import Fleet
from bastion.emulators.tpu.rpc_faults import RpcFaults
from bastion.emulators.tpu.service import TokenGuard, TpuService
from bastion.emulators.tpu.settings import HOSTS_MAX, FleetSettings

_log = logging.getLogger(__name__)

_RPC_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorSettings(FleetSettings):
    """Settings of one emulator; `port` 0 means the last run's port if free, else any."""

    port: int = 0


class Emulator:
    """A Cloud TPU API on this machine. Call `open`, use `address`, call `close`."""

    def __init__(self, settings: EmulatorSettings) -> None:
        if settings.hosts_max > HOSTS_MAX:
            raise Refused(f"--hosts-max={settings.hosts_max} is too large; it must be at most {HOSTS_MAX}")
        self._settings = settings
        self._folder = settings.state_dir.absolute()
        self._lock: int | None = None
        self._server: Any = None
        self._address: EmulatorAddress | None = None
        self.fleet = Fleet(replace(settings, state_dir=self._folder))

    @property
    def address(self) -> EmulatorAddress:
        assert self._address is not None, "the emulator is not open"
        return self._address

    def open(self) -> EmulatorAddress:
        """Start serving. Raises EmulatorRunning if the state folder is already served.

        Raises Refused if the folder cannot be made private or the port is in use.
        """
        make_private(self._folder)
        make_private(self._folder / "vms")
        self._lock = hold(self._folder)
        token, last_port = _read_identity(self._folder / "identity.json")
        self._server = grpc.server(
            ThreadPoolExecutor(_RPC_THREADS, thread_name_prefix="rpc"),
            handlers=TpuService(self.fleet).handlers(),
            interceptors=[TokenGuard(token), RpcFaults(self.fleet.faults, self._settings.plan)],
            # Without this, a second emulator could listen on the same port and get half of the calls.
            options=[("grpc.so_reuseport", 0)],
        )
        port = self._listen(self._settings.port, last_port)
        write_private(self._folder / "identity.json", json.dumps({"token": token, "port": port}).encode())
        self._address = EmulatorAddress(endpoint=f"127.0.0.1:{port}", token=token, process=this_process())
        self.fleet.open()
        self._server.start()
        publish(self._folder, self._address)
        _log.info("serving the Cloud TPU API on %s, state in %s", self._address.endpoint, self._folder)
        return self._address

    def close(self) -> None:
        """Stop serving, end every VM, release the folder."""
        if self._server is not None:
            self._server.stop(grace=1.0).wait()
        if self._address is not None:
            self.fleet.close()
            (self._folder / ADDRESS_FILE).unlink(missing_ok=True)
            self._address = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _listen(self, port: int, last_port: int) -> int:
        for wanted in [port] if port else [last_port, 0]:
            with contextlib.suppress(RuntimeError):  # grpc's error for a port in use
                if bound := self._server.add_insecure_port(f"127.0.0.1:{wanted}"):
                    return int(bound)
        raise Refused(f"port {port} of 127.0.0.1 is in use; choose another, or omit --port")


def _read_identity(path: Path) -> tuple[str, int]:
    """Token and port of the last run; a new token and port 0 if it was the first."""
    document = read_document(path)
    token, port = document.get("token"), document.get("port")
    if isinstance(token, str) and isinstance(port, int):
        return token, port
    return secrets.token_urlsafe(32), 0
