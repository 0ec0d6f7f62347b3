"""Turns into another program that ends with the process that started it: `python tied.py PARENT-PID PROGRAM [ARG...]`.

Layer: worker; a program of its own, and it imports the standard library only.

Invariants:

* When the thread that started it ends, the kernel kills the program, whatever it is at (Linux).
* SIGTERM does not reach it: a host that is shut down sends that to every process at once, and the command's last save
  needs the program for as long as the command lives. Whoever started it ends it by SIGINT, or SIGKILL.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Returns only if the parent is dead already."""
    parent, *program = arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == int(parent):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        os.execv(program[0], program)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
