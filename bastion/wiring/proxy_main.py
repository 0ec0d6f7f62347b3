"""The storage proxy as the agent starts it: `python -m bastion.wiring.proxy_main`, configured by its environment."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from bastion.core.errors import BastionError


def main() -> int:
    """Run until SIGINT; return an exit code of `bastion.core.encryption.sidecar_contract`."""
    # Until it serves, SIGINT ends it at once, without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bastion.wiring import proxy as proxy_setup

    try:
        # The agent names its folders; there is no home folder.
        return proxy_setup.serve(os.environ, home=Path.cwd(), say=lambda _line: None)
    except BastionError as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
