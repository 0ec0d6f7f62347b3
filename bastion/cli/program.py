"""One command line: find the command, parse its flags, run it; turn errors into one line and an exit code.

Exit codes: 0 done; the job's own with `--wait`; 1 a failure; 64 refused; 75 infrastructure; 130 interrupted; 141 stdout
is closed; 143 the job was cancelled.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from bastion.cli import help as help_text
from bastion.cli import parsing
from bastion.cli.output import plain, say
from bastion.cli.registry import GROUPS
from bastion.core.errors import EXIT_REFUSED, BastionError
from bastion.core.plain_text import plain_line
from quota import QuotaFileError

_EXIT_BROKEN_PIPE = 128 + 13


def run(arguments: list[str]) -> int:
    """Run one command line, given without the program's name; return the exit code. Raises KeyboardInterrupt."""
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        _escape_unencodable(stream)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BastionError as error:
        say(f"bastion: {plain_line(error)}")
        return error.exit_code
    except QuotaFileError as error:
        for problem in error.problems:
            say(f"bastion: {plain(problem)}")
        return EXIT_REFUSED
    except BrokenPipeError:
        # Otherwise the interpreter reports it again when it flushes at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_BROKEN_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(f"bastion: {plain(where)}{plain(error.strerror or error)}")
        return 1
    return code


def _run(arguments: list[str]) -> int:
    if not arguments:
        say(help_text.overview())
        return EXIT_REFUSED
    if arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    if arguments[0] in ("-h", "-help", "--help", "--helpshort", "--helpfull"):
        print(help_text.overview(), end="")
        return 0
    if arguments[0] == "--version":
        arguments = ["version"]
    asked = parsing.wants_help(arguments)
    if arguments[0] in GROUPS and asked and (len(arguments) < 2 or arguments[1].startswith("-")):
        print(help_text.of_group(arguments[0]), end="")
        return 0
    entry, length = parsing.find(arguments)
    command = entry.load()
    if asked:
        print(help_text.of_command(entry.name, command), end="")
        return 0
    return command.run(parsing.parse(entry.name, command, arguments[length:]))


def _replace_closed_streams() -> None:
    """Replace streams closed with `>&-`: otherwise the next file to be opened takes their descriptor."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # This opens the lowest free descriptor, which is `number`: the lower ones are open.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def _escape_unencodable(stream: TextIO) -> None:
    """Escape characters that the stream's encoding lacks."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
