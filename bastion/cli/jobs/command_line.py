"""What follows `--` as a job: its command line, name and variables.

Arguments are kept exactly, except for the older form `-c "'...'"` (`unwrap`).
"""

from __future__ import annotations

import itertools
import re
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

from bastion.cli.output import plain
from bastion.core.errors import Refused
from bastion.core.model import labels

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERPRETERS = re.compile(r"(?:python[0-9.]*|(?:ba|da|z|k)?sh|env|time|nice|uv|poetry|exec)")


def unwrap(arguments: Sequence[str]) -> tuple[list[str], str]:
    """Remove one pair of single quotes from `python3 -c "'import jax; print(jax.devices())'"`.

    Older clients joined the command without quoting, and their docs show this form. Applies only to a last argument
    that follows `-c`, is wrapped in one pair, contains no other single quote and contains whitespace.

    Returns:
        The arguments, and a note for the user (empty if nothing changed).
    """
    kept = list(arguments)
    if len(kept) >= 2 and kept[-2] == "-c":
        last = kept[-1]
        inside = last[1:-1]
        wrapped = len(last) > 2 and last.startswith("'") and last.endswith("'")
        if wrapped and "'" not in inside and any(char.isspace() for char in inside):
            kept[-1] = inside
            return kept, "removed the single quotes from the last argument after -c; use --raw to keep them"
    return kept, ""


def one_word(arguments: Sequence[str]) -> str:
    """Return a note if the command is one argument with spaces, which names no program; else an empty text."""
    if len(arguments) == 1 and any(char.isspace() for char in arguments[0].strip()):
        return (
            "the command is a single word with spaces, so bash looks for a program of that name; remove the quotes, "
            "or run a shell: -- bash -c '...'"
        )
    return ""


def command_line(arguments: Sequence[str]) -> str:
    """Quote the arguments as one bash command line. Raises `Refused` if an argument is not UTF-8."""
    for number, argument in enumerate(arguments, start=1):
        check_text(argument, f"argument {number} of the command")
    return shlex.join(arguments)


def check_text(text: str, what: str) -> None:
    """Raise `Refused` if the text holds bytes that are not UTF-8 (lone surrogates in Python)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Refused(f"{what} is not UTF-8 text ({plain(text[:60])!r}); a job spec holds only UTF-8") from error


def environment(assignments: Sequence[str]) -> dict[str, str]:
    """Read the values of `--env NAME=VALUE`. Raises `Refused` if one has another form, or a name has two values."""
    variables: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise Refused(f"--env={plain(name)} has no value; use --env {plain(name) or 'NAME'}=VALUE")
        if not _ENV_NAME.fullmatch(name):
            raise Refused(
                f"--env: {plain(name)!r} is not a valid variable name; use letters, digits and _, no leading digit"
            )
        check_text(value, f"the value of --env {name}")
        if variables.get(name, value) != value:
            raise Refused(f"--env sets {name} to two values; set it once")
        variables[name] = value
    return variables


def secret_references(assignments: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """Read the values of `--secret NAME=SOURCE`.

    Raises `Refused` without showing what follows the `=`, which may be the secret itself.
    """
    from bastion.core.model import secrets as references

    found: dict[str, str] = {}
    for assignment in assignments:
        name, equals, source = assignment.partition("=")
        if not equals:
            raise Refused(f"--secret has no =; use --secret NAME=SOURCE, where SOURCE is {references.FORMS}")
        _check_secret(references.check_name, name, f"--secret: {plain(name[:60])!r}")
        _check_secret(references.check_source, source, f"--secret={plain(name[:60])}=...")
        check_text(source, f"the path of --secret {name}")
        if found.get(name, source) != source:
            raise Refused(f"--secret sets {name} twice; set it once")
        if name in variables:
            raise Refused(f"--env and --secret both set {name}; remove one of them")
        found[name] = source
    return found


def _check_secret(check: Callable[[str], str], text: str, what: str) -> None:
    try:
        check(text)
    except ValueError as error:
        raise Refused(f"{what} {error}") from None


def assigned_labels(assignments: Sequence[str]) -> dict[str, str]:
    """Read the values of `--label KEY=VALUE`. Raises `Refused` if one is not valid, or a key has two values."""
    found: dict[str, str] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise Refused(f"--label={plain(key)} has no value; use --label {plain(key) or 'KEY'}=VALUE")
        if found.get(key, value) != value:
            raise Refused(f"--label sets {plain(key)} to two values; set it once")
        found[key] = value
    try:
        labels.check(found)
    except ValueError as error:
        raise Refused(f"--label: {error}") from error
    return found


def wanted_labels(filters: Sequence[str]) -> dict[str, str | None]:
    """Read the values of `bastion list --label KEY[=VALUE]`; None: any value. Raises `Refused` as `assigned_labels`."""
    wanted: dict[str, str | None] = {}
    for each in filters:
        key, equals, value = each.partition("=")
        problem = labels.form_problem(key, value)
        if problem:
            raise Refused(f"--label: {problem}")
        if equals and wanted.get(key) not in (None, value):
            raise Refused(f"--label asks for two values of {key}, so no job matches; ask for one")
        wanted[key] = value if equals else wanted.get(key)
    return wanted


def draw_name(user: str, arguments: Sequence[str]) -> str:
    """Generate `<user>-<word of the command>-<6 hex>`."""
    return f"{_word(user, 20) or 'user'}-{_word(_identifying_word(arguments), 16) or 'job'}-{secrets.token_hex(3)}"


def _identifying_word(arguments: Sequence[str]) -> str:
    """The word that identifies a command: `train` of `python3 -u train.py`, `python3` of `python3 -c ...`."""
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
