"""Bring the agent to a pod that cannot fetch it: `python -m bastion.wiring.bring_agent FILE`, in an init container.

BASTION_AGENT has the AgentArguments, as for the agent itself. FILE is complete or absent. Failures that may pass, also
a missing permission, are tried again until the pod ends. Exit code 64, with a termination message: this pod can never
have its agent.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from bastion.adapters.kubernetes import terms
from bastion.adapters.system_clock import SystemClock
from bastion.agent import pod
from bastion.agent.backoff import Backoff
from bastion.core import limits
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.errors import EXIT_CANCELLED, EXIT_REFUSED, BastionError, InvalidDocument, Refused
from bastion.ports import ObjectStore
from bastion.wiring.roots import open_root


def read_arguments(environ: Mapping[str, str]) -> AgentArguments:
    """Raises InvalidDocument, which says what is wrong with the variable."""
    text = environ.get(pod.ARGUMENTS, "")
    if not text:
        raise InvalidDocument(f"the pod has no {pod.ARGUMENTS}; the manifest must set it")
    try:
        arguments = protocol.read(AgentArguments, text.encode())
    except InvalidDocument as error:
        raise InvalidDocument(f"{pod.ARGUMENTS}: {error}") from error
    if not arguments.agent:
        raise InvalidDocument(f"{pod.ARGUMENTS} names no agent; the daemon must have packed one")
    return arguments


def fetch(store: ObjectStore, sha256: str) -> bytes:
    """Return the agent's file. Raises InvalidDocument for another digest; StoreError."""
    key = keys.agent_file(sha256)
    data = store.get(key, max_bytes=limits.BUNDLE_MAX_BYTES).data
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise InvalidDocument(
            f"{key} has a wrong SHA-256: expected {sha256}, got {found}; delete it, and the daemon uploads it again"
        )
    return data


def write(file: Path, data: bytes) -> None:
    """Write the file atomically, readable by all: the container that reads it may run as another user."""
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}-", delete=False) as made:
        try:
            made.write(data)
            made.flush()
            Path(made.name).chmod(0o644)
            Path(made.name).replace(file)
        except BaseException:
            Path(made.name).unlink(missing_ok=True)
            raise


def bring(environ: Mapping[str, str], file: Path, *, sleep: Callable[[float], object], rng: Random) -> int:
    """Return the exit code: 0, or 64 with a termination message."""
    backoff = Backoff(rng)
    while (code := _try(environ, file)) is None:
        sleep(backoff.next())
    return code


def _try(environ: Mapping[str, str], file: Path) -> int | None:
    """Return None if it may work later."""
    try:
        arguments = read_arguments(environ)
        write(file, fetch(open_root(arguments.root), arguments.agent))
    except (InvalidDocument, Refused) as error:
        logging.error("%s", error)
        pod.write_termination_message(environ, f"{terms.NOT_BROUGHT}: {error}")
        return EXIT_REFUSED
    except (BastionError, OSError) as error:
        logging.warning("%s; trying again", error)
        return None
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    if len(given) != 1:
        sys.stderr.write("usage: python -m bastion.wiring.bring_agent FILE\n")
        return EXIT_REFUSED
    # The first process of a container gets only the signals that it asks for.
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(EXIT_CANCELLED))
    return bring(os.environ, Path(given[0]), sleep=SystemClock().sleep, rng=Random())


if __name__ == "__main__":
    sys.exit(main())
