"""The CLI reference `docs/reference/cli.md`, rendered from the command table and the flags.

Layer: cli. `make docs` rewrites the file of a checkout; a test fails when it is stale.
"""

from __future__ import annotations

from bastion.cli.command import Command
from bastion.cli.help import meaning, own_flags, spelling
from bastion.cli.registry import ENTRIES, GROUPS

_PREAMBLE = """\
# The command line

<!-- Rendered by `make docs`; do not edit. -->

Which bastion a command is about: `--root=URL`, or `--bastion=NAME` with `--bucket=URL`; else `$BASTION_ROOT`; else the
settings of `bastion config set`; else the bastion on this machine. Contradicting flags are refused. `--instance-type`
and `--instance_type` are the same flag, and so on; a flag that takes no value is switched off with `no` before its
name, like `--nowait`.

Data goes to stdout, progress and notes to stderr. With `--output=json`, stdout holds JSON and nothing else.

| exit code | meaning |
|---|---|
| 0 | done; with `launch --wait` and `submit --wait`: the job succeeded |
| 1 | something failed, for example access to the bucket |
| 64 | refused: what was asked is not possible as asked, or the job was refused |
| 75 | the infrastructure gave up: the job's slices, or the bucket |
| 130 | Ctrl-C; with `--wait`: detached, the job goes on |
| 143 | with `launch --wait` and `submit --wait`: the job was cancelled |
| other | with `launch --wait` and `submit --wait`: the job's own exit code |

Environment: `BASTION_ROOT` (a bastion's folder), `BASTION_HOME` (where everything local lies; default
`$XDG_DATA_HOME/bastion` or `~/.local/share/bastion`).
"""


def render() -> str:
    """The whole file."""
    listed = "".join(f"| [`bastion {e.name}`](#bastion-{e.name.replace(' ', '-')}) | {e.summary} |\n" for e in ENTRIES)
    parts = [_PREAMBLE, f"| command | |\n|---|---|\n{listed}"]
    told: set[str] = set()
    for entry in ENTRIES:
        group = entry.name.split()[0]
        about = GROUPS.get(group, "")
        parts.append(_section(entry.name, entry.load(), about if group not in told else ""))
        told.add(group)
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
