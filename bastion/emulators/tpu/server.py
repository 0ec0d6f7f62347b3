"""The emulator as a whole: its state folder, its lock, its token, its gRPC server.

Invariants:

* One emulator per state folder (`flock`), listening on 127.0.0.1 only; every call carries the folder's token.
* `emulator.json` exists only after the server answers, and is removed at an orderly end.
* A restart keeps port and token, so that clients that were connected go on working.
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
    """What one emulator is told; `port` 0 means the last run's port if it is free, else any."""

    port: int = 0


class Emulator:
    """A Cloud TPU API on this machine. `open` it, use `address`, `close` it.

    Raises:
        EmulatorRunning: from `open`, if the state folder is served already.
        Refused: from `open`, if the folder cannot be made private or the port is taken.
    """

    def __init__(self, settings: EmulatorSettings) -> None:
        if settings.hosts_max > HOSTS_MAX:
            raise Refused(f"--hosts-max={settings.hosts_max} is too large: a node has at most {HOSTS_MAX} addresses")
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
        """Serves, and returns once it does."""
        make_private(self._folder)
        make_private(self._folder / "vms")
        self._lock = hold(self._folder)
        token, last_port = _read_identity(self._folder / "identity.json")
        self._server = grpc.server(
            ThreadPoolExecutor(_RPC_THREADS, thread_name_prefix="rpc"),
            handlers=TpuService(self.fleet).handlers(),
            interceptors=[TokenGuard(token), RpcFaults(self.fleet.faults, self._settings.plan)],
            # Without this a second emulator could listen on the same port and take half of the calls.
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
        """Stops serving, ends every VM, leaves the folder to the next one."""
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
            with contextlib.suppress(RuntimeError):  # what grpc raises for a port that is taken
                if bound := self._server.add_insecure_port(f"127.0.0.1:{wanted}"):
                    return int(bound)
        raise Refused(f"port {port} of 127.0.0.1 is taken; choose another, or leave --port out")


def _read_identity(path: Path) -> tuple[str, int]:
    """Token and port of the last run; a new token and no port if there was none."""
    document = read_document(path)
    token, port = document.get("token"), document.get("port")
    if isinstance(token, str) and isinstance(port, int):
        return token, port
    return secrets.token_urlsafe(32), 0
