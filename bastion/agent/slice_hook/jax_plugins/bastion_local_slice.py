"""Join the processes of an emulated slice, so that `jax.devices()` shows the devices of all its hosts.

JAX imports every module of the namespace package `jax_plugins` and calls its `initialize()` at the first use of a
device: after a `jax.distributed.initialize()` of the command (which wins), before any backend exists. Runs in the
user's interpreter: use only the standard library and JAX here, and add no `__init__.py` (other plugins share the
namespace).

`BASTION_NO_AUTO_DISTRIBUTED=1` turns it off, for commands that run several JAX processes on one host.
`BASTION_DISTRIBUTED_TIMEOUT_SECONDS` (60) is how long the hosts wait for each other.
"""

import os
import sys
import threading
from typing import NoReturn

EXIT_CODE = 70
TIMEOUT_SECONDS = 60


def initialize() -> None:
    """Join the slice, or end the process with `EXIT_CODE` and a message."""
    address = os.environ.get("BASTION_COORDINATOR_ADDRESS", "")
    opted_out = os.environ.get("BASTION_NO_AUTO_DISTRIBUTED", "") not in ("", "0")
    try:
        processes = int(os.environ.get("BASTION_NUM_PROCESSES", "1"))
        process = int(os.environ.get("BASTION_PROCESS_ID", "0"))
        timeout = int(os.environ.get("BASTION_DISTRIBUTED_TIMEOUT_SECONDS", "") or TIMEOUT_SECONDS)
    except ValueError as error:
        _fail("a BASTION_* variable is not a number", error)
    if opted_out or not address or processes < 2:
        return

    import jax
    from jax._src import distributed

    if distributed.global_state.client is not None:
        return
    what = f"host {process} of {processes} could not join the slice at {address}"
    # At its own timeout JAX aborts the process with a C++ stack instead of raising, so ours comes first.
    watchdog = threading.Timer(timeout, _fail, (what, f"not all hosts joined within {timeout} s"))
    watchdog.daemon = True
    watchdog.start()
    # The errors of the service are not documented. JAX would log an exception and continue with one host's devices, and
    # the job would train on a part of the slice.
    try:
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=processes,
            process_id=process,
            initialization_timeout=timeout + 60,
            cluster_detection_method="deactivate",
        )
    except Exception as error:  # noqa: BLE001
        _fail(what, error)
    watchdog.cancel()


def _fail(what: str, why: object) -> NoReturn:
    sys.stdout.flush()
    print(  # noqa: T201
        f"bastion: {what}: {why}\n"
        "bastion: all hosts must start JAX; look at the other workers' logs for the one that did not. A command that\n"
        "bastion: runs several JAX processes on a host sets BASTION_NO_AUTO_DISTRIBUTED=1.",
        file=sys.stderr,
        flush=True,
    )
    # JAX swallows what a plugin raises.
    os._exit(EXIT_CODE)
