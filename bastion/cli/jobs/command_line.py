"""From what follows `--` to a job: its command line, its name, its variables. Pure but for the random name.

Layer: cli. Arguments are kept exactly; the one exception is the older documented form `-c "'...'"`, see `unwrap`.
"""

from __future__ import annotations

import itertools
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from bastion.cli.output import plain
from bastion.core.errors import Refused

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERPRETERS = re.compile(r"(?:python[0-9.]*|(?:ba|da|z|k)?sh|env|time|nice|uv|poetry|exec)")
# What stands for a hidden value.
_HIDDEN = "***"
_SECRET = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|PRIVATE|API_?KEY|ACCESS_?KEY|_KEY\Z", re.IGNORECASE)


def unwrap(arguments: Sequence[str]) -> tuple[list[str], str]:
    """Takes one pair of single quotes off `python3 -c "'import jax; print(jax.devices())'"`.

    Such arguments come from a time when the command was joined without quoting. Only a last argument that directly
    follows `-c`, is wrapped in one pair, has none inside and contains whitespace is meant: as a program of its own it
    would do nothing.

    Returns:
        The arguments, and a note for the user (empty: nothing was changed).
    """
    kept = list(arguments)
    if len(kept) >= 2 and kept[-2] == "-c":
        last = kept[-1]
        inside = last[1:-1]
        wrapped = len(last) > 2 and last.startswith("'") and last.endswith("'")
        if wrapped and "'" not in inside and any(char.isspace() for char in inside):
            kept[-1] = inside
            return kept, "took the single quotes off the last argument after -c; --raw keeps them"
    return kept, ""


def one_word(arguments: Sequence[str]) -> str:
    """A note if a whole command line came as one argument, which would be looked for as one program's name."""
    if len(arguments) == 1 and any(char.isspace() for char in arguments[0].strip()):
        return (
            "the command is one word with spaces in it, so a program of that name is looked for; leave the quotes "
            "out, or have a shell read it: -- bash -c '...'"
        )
    return ""


def command_line(arguments: Sequence[str]) -> str:
    """The bash command line that gives a program exactly these arguments.

    Raises:
        Refused: an argument that JSON cannot hold.
    """
    for number, argument in enumerate(arguments, start=1):
        check_text(argument, f"argument {number} of the command")
    return shlex.join(arguments)


def check_text(text: str, what: str) -> None:
    """Refuses bytes that are not UTF-8 (Python holds them as lone surrogates).

    Raises:
        Refused: with what to do.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refused(f"{what} is not UTF-8 text ({plain(text[:60])!r}); a job spec can hold UTF-8 only") from error


def environment(assignments: Sequence[str]) -> dict[str, str]:
    """Reads `--env NAME=VALUE`, given any number of times.

    Raises:
        Refused: not of that form, or one name with two values.
    """
    variables: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise Refused(f"--env={plain(name)} has no value; write --env {plain(name) or 'NAME'}=VALUE")
        if not _ENV_NAME.fullmatch(name):
            raise Refused(
                f"--env: {plain(name)!r} is not a variable's name; use letters, digits and _, not a digit first"
            )
        check_text(value, f"the value of --env {name}")
        if variables.get(name, value) != value:
            raise Refused(f"--env gives {name} two values; give it once")
        variables[name] = value
    return variables


def masked(variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The variables with the values hidden whose names sound secret, and those names."""
    hidden = sorted(name for name in variables if _SECRET.search(name))
    return {name: _HIDDEN if name in hidden else value for name, value in variables.items()}, hidden


def still_masked(variables: Mapping[str, str]) -> list[str]:
    """Return the names of variables whose values `masked` has hidden."""
    return sorted(name for name, value in variables.items() if value == _HIDDEN and _SECRET.search(name))


def draw_name(user: str, arguments: Sequence[str]) -> str:
    """`<user>-<word of the command>-<6 hex>`."""
    return f"{_word(user, 20) or 'user'}-{_word(_telling(arguments), 16) or 'job'}-{secrets.token_hex(3)}"


def _telling(arguments: Sequence[str]) -> str:
    """The word that tells commands apart: `train` of `python3 -u train.py`, `python3` of `python3 -c ...`."""
    program = PurePosixPath(arguments[0]).name
    if _INTERPRETERS.fullmatch(program):
        for previous, argument in itertools.pairwise(arguments):
            if argument == "-c":
                break
            if previous == "-m":
                return argument.rpartition(".")[2]
            if not argument.startswith("-") and "=" not in argument:
                return PurePosixPath(argument).stem
    return PurePosixPath(program).stem


def _word(text: str, most: int) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:most].strip("-")
