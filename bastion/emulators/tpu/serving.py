"""Run the emulator until SIGTERM or SIGINT, for `python -m bastion.emulators.tpu` and `bastion emulator tpu`."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable

from bastion.emulators.tpu.server import Emulator, EmulatorSettings


def serve(settings: EmulatorSettings, *, say: Callable[[str], None]) -> None:
    """Open an emulator, wait for the signal, close it with all its VMs. Raises like `Emulator.open`.

    `say` gets the lines for the user.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: ended.set())
    emulator = Emulator(settings)
    try:
        address = emulator.open()
        for line in instructions(address.endpoint, str(settings.state_dir.absolute())):
            say(line)
        # A stopped process (Ctrl-Z) may get the signal in another thread, which does not wake this one.
        while not ended.wait(1.0):
            pass
    finally:
        emulator.close()


def instructions(endpoint: str, state_dir: str) -> list[str]:
    """How to use an emulator with google-cloud-tpu, which has no environment variable for it: Python lines."""
    return [
        f"serving the Cloud TPU API (v2) at {endpoint}, state in {state_dir}",
        "",
        "# google-cloud-tpu, in Python:",
        "import json, grpc",
        "from google.cloud import tpu_v2",
        "from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport",
        f'token = json.load(open("{state_dir}/emulator.json"))["token"]',
        "class Token(grpc.UnaryUnaryClientInterceptor):  # on every call, those of operation.result() too",
        "    def intercept_unary_unary(self, call, details, request):",
        '        metadata = [*(details.metadata or ()), ("authorization", f"Bearer {token}")]',
        "        return call(details._replace(metadata=metadata), request)",
        f'channel = grpc.intercept_channel(grpc.insecure_channel("{endpoint}"), Token())',
        "client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))",
        'client.list_nodes(parent="projects/p/locations/us-central2-b")',
    ]
