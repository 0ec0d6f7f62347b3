"""Help texts of `bastion`, its groups and commands. Only the help of a single command loads that command."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

from absl import flags

from bastion.cli.command import Command
from bastion.cli.registry import ENTRIES, GROUPS, Entry

_WIDTH = 100


def overview() -> str:
    return (
        "usage: bastion COMMAND [flags]\n\n"
        "Runs jobs on TPU slices that a team shares: a bucket, a daemon, and this program.\n\n"
        f"{_list_of(ENTRIES)}\n"
        "Example:\n"
        "  bastion launch --instance_type=tpu-v4-32 --wait -- python3 -c 'import jax; print(jax.devices())'\n\n"
        "bastion COMMAND --help shows more. The bastion is --root=URL, or --bastion=NAME with --bucket=URL, or\n"
        "$BASTION_ROOT, or that of your config (bastion config set root URL); else the one on this machine.\n"
    )


def of_group(group: str) -> str:
    members = tuple(entry for entry in ENTRIES if entry.name.split()[0] == group)
    names = "|".join(entry.name.split()[1] for entry in members)
    return f"usage: bastion {group} {names} [flags]\n\n{GROUPS[group]}\n\n{_list_of(members)}"


def of_command(name: str, command: Command) -> str:
    parts = [f"usage: bastion {name} {command.usage}".rstrip() + f"\n\n{command.summary}\n"]
    if command.details:
        parts.append("\n".join(_paragraph(text) for text in command.details.split("\n\n")))
    listed = "".join(_flag_lines(command.values()))
    if listed:
        parts.append(f"Flags:\n{listed}")
    if command.examples:
        parts.append("Examples:\n" + "".join(f"  {example}\n" for example in command.examples))
    return "\n".join(parts)


def own_flags(values: flags.FlagValues) -> Iterator[flags.Flag[Any]]:
    """The flags, each once, in the order of their definition."""
    seen: set[str] = set()
    for name in values.__dict__["__flags"]:
        flag = values[name]
        if flag.name not in seen:
            seen.add(flag.name)
            yield flag


def spelling(flag: flags.Flag[Any]) -> str:
    """`--name=VALUE`, with the short form or the choices."""
    short = f"-{flag.short_name}, " if flag.short_name else ""
    if flag.boolean:
        return f"{short}--{flag.name}"
    choices = getattr(flag.parser, "enum_values", None)
    kind = "|".join(choices) if choices else {"int": "N", "float": "X"}.get(flag.flag_type(), "VALUE")
    return f"{short}--{flag.name}={kind}"


def meaning(flag: flags.Flag[Any]) -> str:
    """The help text, with the default unless it is empty."""
    text = " ".join(str(flag.help or "").split())
    # absl adds what `spelling` already shows.
    text = text.removesuffix("; repeat this option to specify a list of values")
    text = re.sub(r"\A<[\w|]+>: ", "", text)
    if flag.default in (None, "", False) or flag.default == []:
        return text
    return f"{text} Default: {_default(flag.default)}."


def _default(value: object) -> str:
    if value is True:
        return "on"
    return ",".join(value) if isinstance(value, list) else str(value)


def _flag_lines(values: flags.FlagValues) -> Iterator[str]:
    for flag in own_flags(values):
        yield f"  {spelling(flag)}\n"
        yield textwrap.indent(_filled(meaning(flag), _WIDTH - 8), " " * 8) + "\n"


def _list_of(entries: tuple[Entry, ...]) -> str:
    width = max(len(entry.name) for entry in entries)
    return "Commands:\n" + "".join(f"  {entry.name:<{width}}  {entry.summary}\n" for entry in entries)


def _paragraph(text: str) -> str:
    return _filled(" ".join(text.split()), _WIDTH) + "\n"


def _filled(text: str, width: int) -> str:
    """The text in lines; paths and flags are not split at their hyphens."""
    return textwrap.fill(text, width, break_on_hyphens=False)
