"""Ask a person before a command does what cannot be undone."""

from __future__ import annotations

import sys

from bastion.cli.output import say
from bastion.core.errors import EXIT_UNCONFIRMED, Refused


class Unconfirmed(Refused):
    """Nobody agreed; nothing was changed."""

    exit_code = EXIT_UNCONFIRMED


def confirm(question: str) -> None:
    """Ask on the terminal. Raises `Unconfirmed` after any answer but yes, or if there is no terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Unconfirmed(f"{question}? There is no terminal to answer at; nothing was changed. Agree with --yes")
    print(f"{question}? [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        say("")
    if answer.strip().lower() not in ("y", "yes"):
        raise Unconfirmed("nothing was changed")
