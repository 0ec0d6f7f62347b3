"""Render the CLI reference `docs/reference/cli.md` from the registry and the flags; a test fails when it is stale."""

from __future__ import annotations

from bastion.cli.command import Command
from bastion.cli.help import meaning, own_flags, spelling
from bastion.cli.registry import ENTRIES, GROUPS

_PREAMBLE = """\
# The command line

<!-- Rendered by `make docs`; do not edit. -->

A command uses the bastion of `--root=URL`, or `--bastion=NAME` with `--bucket=URL`; else of `$BASTION_ROOT`; else of
`bastion config set`; else the bastion on this machine. Contradictory flags are refused. Dashes and underscores in flags
are equal: `--instance-type` is `--instance_type`. `no` before its name turns a boolean flag off: `--nowait`.

Data goes to stdout, progress and notes to stderr. With `--output=json`, stdout holds JSON and nothing else.

| exit code | meaning |
|---|---|
| 0 | done; with `launch --wait` and `submit --wait`: the job succeeded |
| 1 | a failure, for example of access to the bucket |
| 2 | nobody agreed to a command that asks first; nothing was changed |
| 64 | refused: the request is not valid, or the job was refused |
| 75 | infrastructure failure: of the job's slices, or of the bucket |
| 130 | Ctrl-C; with `--wait`: detached, the job keeps running |
| 143 | with `launch --wait` and `submit --wait`: the job was cancelled |
| other | with `launch --wait` and `submit --wait`: the job's own exit code |

Environment: `BASTION_ROOT` (a bastion's folder), `BASTION_HOME` (the folder of everything local; default
`$XDG_DATA_HOME/bastion` or `~/.local/share/bastion`).
"""


def render() -> str:
    listed = "".join(f"| [`bastion {e.name}`](#bastion-{e.name.replace(' ', '-')}) | {e.summary} |\n" for e in ENTRIES)
    parts = [_PREAMBLE, f"| command | |\n|---|---|\n{listed}"]
    shown: set[str] = set()
    for entry in ENTRIES:
        group = entry.name.split()[0]
        about = GROUPS.get(group, "")
        parts.append(_section(entry.name, entry.load(), about if group not in shown else ""))
        shown.add(group)
    return "\n".join(parts)


def _section(name: str, command: Command, about: str) -> str:
    text = f"## bastion {name}\n\n"
    text += f"{about}\n\n" if about else ""
    text += f"```\n{f'bastion {name} {command.usage}'.rstrip()}\n```\n\n{command.summary}\n"
    for paragraph in filter(None, command.details.split("\n\n")):
        text += f"\n{_escape(' '.join(paragraph.split()))}\n"
    rows = "".join(f"| `{_cell(spelling(flag))}` | {_cell(meaning(flag))} |\n" for flag in own_flags(command.values()))
    if rows:
        text += f"\n| flag | meaning |\n|---|---|\n{rows}"
    if command.examples:
        text += "\n```\n" + "".join(f"{example}\n" for example in command.examples) + "```\n"
    return text


def _escape(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_") if "`" not in text else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
