"""The storage proxy as a host's agent starts it: `python -m bastion.wiring.proxy_main`, told all by its environment.

Layer: wiring. What `bastion proxy run` is for people, without the command line, which nodes do not have.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from bastion.core.errors import BastionError


def main() -> int:
    """Runs until SIGINT; returns the exit code, which `bastion.core.encryption.sidecar_contract` gives a meaning."""
    # Until it serves, SIGINT ends it without further ado, and without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bastion.wiring import proxy as proxy_setup

    try:
        # Its folders are the agent's to name; a home of its own it has not.
        return proxy_setup.serve(os.environ, home=Path.cwd(), say=lambda _line: None)
    except BastionError as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
