"""Start the agent of a host: `python -m bastion.wiring.agent --metadata` on a VM, `--pod` in a pod,
`--arguments-file=FILE` on the bastion's own host.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from bastion import processes
from bastion.adapters.system_clock import SystemClock
from bastion.agent import command_user, pod
from bastion.agent.backoff import Backoff
from bastion.agent.environment import EMULATED_TPU
from bastion.agent.host import Host, state_dir_of
from bastion.agent.identity import HostIdentity
from bastion.agent.metadata_server import MetadataServer, wait_for_identity
from bastion.agent.vm_notices import VmNotices
from bastion.core.bucket import protocol
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.errors import EXIT_REFUSED, BastionError, InvalidDocument, Refused
from bastion.wiring.buckets import open_bucket
from bastion.wiring.roots import fetch_asset, open_root
from bastion.wiring.secrets import secret_sources

# The startup script starts the agent again.
_EXIT_TRY_AGAIN = 1


def read_arguments_file(path: Path) -> HostIdentity:
    """Return the identity of the only host of a job without a slice; raises InvalidDocument."""
    try:
        data = path.read_bytes()
    except OSError as error:
        # The node was deleted while this agent was starting.
        raise InvalidDocument(f"cannot read the agent's arguments: {error}") from error
    return HostIdentity(arguments=protocol.read(AgentArguments, data), worker=0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bastion.wiring.agent", description="Run one host of one attempt.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--metadata", action="store_true", help="ask the VM's metadata server who this host is")
    source.add_argument("--arguments-file", type=Path, metavar="FILE", help="one host, described by this file")
    source.add_argument("--pod", action="store_true", help="one host, described by the environment of its pod")
    options = parser.parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    clock = SystemClock()
    rng = Random()
    notices: VmNotices | None = None
    try:
        if options.metadata:
            server = MetadataServer.from_environment(os.environ)
            identity = wait_for_identity(server, Backoff(rng, last_seconds=10.0), clock.sleep)
            notices = VmNotices(server, clock=clock, rng=rng)
        elif options.pod:
            identity = pod.read_identity(os.environ)
        else:
            identity = read_arguments_file(options.arguments_file)
        # Before anything may start a thread.
        user = command_user.decide(identity, emulated=os.environ.get(EMULATED_TPU) == "1", in_pod=options.pod)
        store = open_root(identity.arguments.root)
    except BastionError as error:
        logging.error("%s", error)
        if options.pod:
            pod.write_termination_message(os.environ, f"the agent cannot start: {error}")
            if not isinstance(error, (InvalidDocument, Refused)):
                return _EXIT_TRY_AGAIN  # a metadata or storage server that does not answer yet
        return EXIT_REFUSED
    processes.reset_signals()
    # The agent starts only the command and its own children; what it adopts ends with the command.
    processes.become_subreaper()
    state_dir = state_dir_of(os.environ)
    host = Host(
        identity,
        store,
        clock=clock,
        rng=rng,
        environ=os.environ,
        state_dir=state_dir,
        fetch=fetch_asset,
        secrets=secret_sources(os.environ),
        open_bucket=open_bucket,
        notices=notices,
        command_user=user,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: host.shut_down())
    code = host.run()
    if options.pod:
        message = pod.ending_message(identity, host.last_report, stored=code == 0)
        pod.write_termination_message(os.environ, message)
    return code


if __name__ == "__main__":
    sys.exit(main())
