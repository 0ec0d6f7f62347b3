"""`bastion launch --file=job.toml`: a job's flags and command in a file, for those that are not on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli
from absl import flags

from bastion.cli.command import Invocation
from bastion.cli.output import plain
from bastion.cli.parsing import check_value, did_you_mean
from bastion.core import limits
from bastion.core.errors import Refused
from bastion.core.plain_text import plain_line

FLAG = "file"
_COMMAND = "command"


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        FLAG,
        None,
        "A TOML file with flags of this command as keys, and command; flags on the command line win.",
        flag_values=values,
    )


def merged(call: Invocation) -> tuple[Invocation, str]:
    """The invocation with what its job file adds, and the file's command line if `command` is one text.

    Raises:
        Refused: the file cannot be read, or says what cannot be meant; the message names the line.
    """
    path = call.flags[FLAG].value
    if path is None:
        return call, ""
    text = _read(path)
    document = _parsed(path, text)
    command = document.pop(_COMMAND, None)
    for key, value in document.items():
        where = f"{plain(path)}{_line(text, key)}"
        if key == FLAG or key not in call.flags:
            known = [name for name in (*call.flags, _COMMAND) if name != FLAG]
            raise Refused(f"{where}: bastion launch has no flag {plain(key)!r}{did_you_mean(key, known)}")
        _set(call, key, value, where)
    if command is None or call.command:
        return call, ""
    if isinstance(command, str) and command.strip():
        return call, command
    if isinstance(command, list) and command and all(isinstance(each, str) for each in command):
        return replace(call, command=tuple(command)), ""
    raise Refused(
        f"{plain(path)}{_line(text, _COMMAND)}: command must be a command line, or a list of arguments, such as "
        '["python3", "train.py"]'
    )


def _read(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(limits.SPEC_MAX_BYTES + 1)
    except OSError as error:
        raise Refused(f"cannot read the job file {plain(path)}: {error.strerror}") from error
    if len(data) > limits.SPEC_MAX_BYTES:
        raise Refused(f"the job file {plain(path)} is longer than {limits.SPEC_MAX_BYTES} bytes, which no spec may be")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"the job file {plain(path)} is not UTF-8 text") from error


def _parsed(path: str, text: str) -> dict[str, Any]:
    try:
        return tomli.loads(text)
    except (ValueError, RecursionError) as error:  # tomli's error is a ValueError, as is that of huge integers
        raise Refused(f"{plain(path)} is not valid TOML ({plain_line(error) or 'it nests too deeply'})") from error


def _line(text: str, key: str) -> str:
    """`, line N` of a key or a table; empty if it is written in another way."""
    written = re.compile(rf"""\s*\[?\s*["']?{re.escape(key)}["']?\s*[\].=]""")
    return next((f", line {n}" for n, line in enumerate(text.splitlines(), start=1) if written.match(line)), "")


def _set(call: Invocation, key: str, value: Any, where: str) -> None:
    flag = call.flags[key]
    several = isinstance(flag.value, list)
    if isinstance(value, Mapping) and several:
        given = {each.partition("=")[0] for each in flag.value or ()}
        texts = [f"{name}={_text(each, f'{where}: {key}.{plain(name)}')}" for name, each in value.items()]
        texts = [text for text in texts if text.partition("=")[0] not in given]
    elif flag.present:
        return
    elif isinstance(value, list) and several:
        texts = [_text(each, f"{where}: {key}") for each in value]
    else:
        texts = [_text(value, f"{where}: {key}")]
    try:
        for text in texts:
            check_value(call.name, call.flags, f"--{key}={text}")
            flag.parse([text] if several else text)
    except (Refused, flags.Error) as error:
        raise Refused(f"{where}: {plain_line(error)}") from error


def _text(value: Any, what: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise Refused(f"{what} must be a text, a number, true or false")
