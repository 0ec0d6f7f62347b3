"""Parse arguments into an `Invocation`.

absl does not see the raw arguments: it would stop at `--help`, obey `--flagfile` and `--undefok`, and reject dashes in
names. This module finds each flag and passes it on as `--name=value`; absl parses the value.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import plain
from bastion.cli.registry import ENTRIES, GROUPS, Entry
from bastion.core.errors import Refused
from bastion.core.plain_text import plain_line

# Commands that are named if a group is missing: `run` is a command of several.
_MEANT_MAX = 3
_HELP = ("-h", "-help", "--help", "--helpshort", "--helpfull")
# absl's own flags that read other arguments or ignore mistakes.
_REFUSED = {
    "flagfile": "write the flags on the command line",
    "undefok": "leave out the flags that do not exist",
}


@dataclass(slots=True)
class _Split:
    assignments: list[str] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def find(words: Sequence[str]) -> tuple[Entry, int]:
    """The command that the words start with, and the number of words in its name. Raises Refused."""
    first = words[0]
    if first in GROUPS:
        second = words[1] if len(words) > 1 else ""
        members = {entry.name.split()[1]: entry for entry in ENTRIES if entry.name.split()[0] == first}
        if second in members:
            return members[second], 2
        choice = f"bastion {first} {'|'.join(members)}"
        if not second or second.startswith("-"):
            raise Refused(f"bastion {first} requires a command: {choice}")
        raise Refused(f"bastion {first} has no command {plain(second)}{did_you_mean(second, members)} ({choice})")
    for entry in ENTRIES:
        if entry.name == first:
            return entry, 1
    known = [*(entry.name for entry in ENTRIES), *GROUPS, *(entry.name.split()[-1] for entry in ENTRIES)]
    near = difflib.get_close_matches(first, dict.fromkeys(known), n=1, cutoff=0.6)
    full = [entry.name for entry in ENTRIES if near and (entry.name == near[0] or entry.name.split()[-1] == near[0])]
    meant = " or ".join(f"bastion {name}" for name in (full or near)[:_MEANT_MAX])
    hint = f"did you mean {meant}?" if near else "see bastion --help"
    raise Refused(f"no such command: {plain(first)!r}; {hint}")


def wants_help(arguments: Sequence[str]) -> bool:
    """Whether a help flag comes before the first `--`."""
    until = arguments.index("--") if "--" in arguments else len(arguments)
    return any(argument in _HELP for argument in arguments[:until])


def parse(name: str, command: Command, arguments: Sequence[str]) -> Invocation:
    """Parse the arguments after the command's name. Raises Refused."""
    until = arguments.index("--") if "--" in arguments else len(arguments)
    values = command.values()
    split = _split(name, values, arguments[:until])
    after = tuple(arguments[until + 1 :]) if until < len(arguments) else None
    for assignment in split.assignments:
        check_value(name, values, assignment)
    try:
        values([name, *split.assignments])
    except flags.Error as error:
        raise Refused(f"{plain_line(error)}; see bastion {name} --help") from error
    operands = tuple(split.operands)
    if not command.takes_command:
        operands, after = operands + (after or ()), None
    _check_operands(name, command, operands, after)
    return Invocation(name=name, flags=values, operands=operands, command=after)


def _split(name: str, values: flags.FlagValues, arguments: Sequence[str]) -> _Split:
    split = _Split()
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-") or argument == "-":
            split.operands.append(argument)
            continue
        written, equals, value = argument.lstrip("-").partition("=")
        flag = written.replace("-", "_")
        if flag in _REFUSED:
            raise Refused(f"--{flag} is not supported; {_REFUSED[flag]}")
        positive = flag[2:].lstrip("_") if flag.startswith("no") else ""
        if flag not in values and positive in values and values[positive].boolean:
            if equals:
                raise Refused(f"--{plain(written)} takes no value; use --{positive}={plain(value)}")
            split.assignments.append(f"--{positive}=false")
        elif flag not in values:
            known = {other.replace("_", "-"): other for other in values}
            near = difflib.get_close_matches(flag.replace("_", "-"), known, n=2, cutoff=0.6)
            hint = "".join([" or ".join(f"--{known[other]}" for other in near)])
            hint = f"did you mean {hint}?" if near else f"see bastion {name} --help"
            raise Refused(f"bastion {name} has no flag {plain(argument.partition('=')[0])}; {hint}")
        elif equals:
            split.assignments.append(f"--{flag}={value}")
        elif values[flag].boolean:
            split.assignments.append(f"--{flag}=true")
        else:
            following = next(rest, None)
            if following is None:
                raise Refused(f"--{flag} requires a value: --{flag}=VALUE")
            split.assignments.append(f"--{flag}={following}")
    return split


def check_value(name: str, values: flags.FlagValues, assignment: str) -> None:
    """Refuse a bad number or boolean; absl's message would show Python's error."""
    flag, _, value = assignment.removeprefix("--").partition("=")
    kinds = {"int": "a whole number", "float": "a number", "bool": "true or false"}
    kind = kinds.get(values[flag].flag_type())
    if kind is None:
        return
    if not _is_written_well(values[flag].parser, kind, value):
        raise Refused(f"--{flag}={plain(value)} is not {kind}; see bastion {name} --help")


def _is_written_well(parser: flags.ArgumentParser[object], kind: str, value: str) -> bool:
    """Whether the text has the form; absl checks ranges, but lets NaN and infinity pass."""
    try:
        if kind == "a number":
            return math.isfinite(float(value))
        if kind == "a whole number" and re.fullmatch(r"[-+]?[0-9]+", value):
            return True
        parser.parse(value)
    except (ValueError, TypeError):
        return False
    return True


def _check_operands(name: str, command: Command, operands: tuple[str, ...], after: tuple[str, ...] | None) -> None:
    least, most = command.operands
    usage = f"usage: bastion {name} {command.usage}".rstrip()
    if most is not None and len(operands) > most:
        extra = plain(operands[most])
        if command.takes_command and after is None:
            raise Refused(f"{extra!r} is not a flag; put the command after -- ({usage})")
        if command.takes_command:
            raise Refused(f"{extra!r} before the -- is not a flag; {usage}")
        raise Refused(f"bastion {name} does not take {extra!r}; {usage}")
    if len(operands) < least:
        named = re.findall(r"\b[A-Z]+\b", re.sub(r"\[.*?\]|--\S+", "", command.usage))
        missing = " and ".join(named[len(operands) : least]) or command.usage.split()[0]
        raise Refused(f"{missing} {'are' if ' and ' in missing else 'is'} missing; {usage}")
    if "JOB" in command.usage and "" in operands:
        raise Refused(f"the job name is empty; {usage}")
