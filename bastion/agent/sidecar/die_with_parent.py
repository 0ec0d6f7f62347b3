"""Become another program that dies with the process that started it. Imports the standard library only.

Usage: python die_with_parent.py PARENT-PID PROGRAM [ARG...]

Invariants:
* When the thread that started it ends, the kernel kills the program (Linux).
* The program ignores SIGTERM: a host's shutdown sends it to every process at once, and the command's last save needs
  the program. Its starter ends it with SIGINT or SIGKILL.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Return only if the parent is already dead."""
    parent, *program = arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == int(parent):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        os.execv(program[0], program)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
