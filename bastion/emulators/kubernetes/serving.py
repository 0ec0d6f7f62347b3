"""Run the cluster until SIGTERM or SIGINT, for `python -m bastion.emulators.kubernetes` and `bastion emulator`."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from bastion.emulators.kubernetes.address import KUBECONFIG_FILE
from bastion.emulators.kubernetes.emulator import Emulator
from bastion.emulators.kubernetes.settings import EmulatorSettings


def serve(settings: EmulatorSettings, *, say: Callable[[str], None]) -> None:
    """Open an emulator, wait for the signal, close it with all its pods. Raises like `Emulator.open`.

    `say` gets the lines for the user.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: ended.set())
    emulator = Emulator(settings)
    address = emulator.open()
    try:
        for line in instructions(address.server, settings.state_dir.absolute()):
            say(line)
        # A stopped process (Ctrl-Z) may get the signal in another thread, which does not wake this one.
        while not ended.wait(1.0):
            pass
    finally:
        emulator.close()


def instructions(server: str, state_dir: Path) -> list[str]:
    """How to use an emulator with kubectl: shell lines."""
    return [
        f"serving the Kubernetes API at {server}, state in {state_dir}",
        "",
        "# kubectl, and clients that read a kubeconfig:",
        f"export KUBECONFIG={state_dir / KUBECONFIG_FILE}",
        "kubectl get nodes",
    ]
