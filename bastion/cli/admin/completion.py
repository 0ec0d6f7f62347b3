"""`bastion completion bash|zsh`: a completion script for commands, flags, jobs, projects, users and instance types.

The script is generated from the registry. Commands and flags are in it; for names of a bastion it runs
`bastion completion words KIND`.
"""

from __future__ import annotations

import re

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.help import own_flags
from bastion.cli.output import plain
from bastion.cli.registry import ENTRIES, GROUPS
from bastion.core.errors import Refused
from bastion.core.model import instance_types

_SCRIPT = """\
# Completion of bastion, for bash and (through bashcompinit) zsh.
_bastion() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} words="" flag="" operands="" i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        # What follows -- is the user's own command.
        if [[ ${{COMP_WORDS[i]}} == -- ]]; then return; fi
    done
    if ((COMP_CWORD == 1)); then
        words="{first}"
    else
        case "${{COMP_WORDS[1]}}" in
{groups}        esac
        case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{commands}        esac
    fi
    # Bash makes a word of its own of the = in --flag=value.
    if [[ $current == = ]]; then
        flag=${{COMP_WORDS[COMP_CWORD-1]}} current=""
    elif ((COMP_CWORD > 1)) && [[ ${{COMP_WORDS[COMP_CWORD-1]}} == = ]]; then
        flag=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    case "$flag" in
{flags}    esac
    if [[ -z $flag && -n $operands && $current != -* ]]; then
        words+=" $(bastion completion words $operands 2>/dev/null)"
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    if ((${{#COMPREPLY[@]}} == 0)); then COMPREPLY=($(compgen -f -- "${{current#*=}}")); fi
    if [[ ${{COMPREPLY[0]}} == *= ]]; then compopt -o nospace 2>/dev/null; fi
}}
"""


# The flags whose values are names of a bastion, or of its hardware.
_FLAGS = {"project": "projects", "project_id": "projects", "user": "users", "instance_type": "types", "type": "types"}
_KINDS = ("jobs", "live", "projects", "types", "users")
# Between two presses of Tab nobody reads more.
_WORDS_MAX = 2000
# The shell expands the words: whoever names a spec `$(...)` must not run a command of whoever presses Tab.
_SAFE = re.compile(r"[A-Za-z0-9._@:+-]+")


def _run(call: Invocation) -> int:
    shell = call.operands[0]
    if shell == "words":
        if len(call.operands) < 2 or call.operands[1] not in _KINDS:
            raise Refused(f"bastion completion words requires one of {', '.join(_KINDS)}")
        print("\n".join(filter(_SAFE.fullmatch, _words(call, call.operands[1])[:_WORDS_MAX])))
        return 0
    if shell not in ("bash", "zsh"):
        raise Refused(f"no completion for {plain(shell)!r}; use bash or zsh")
    if len(call.operands) > 1:
        raise Refused(f"bastion completion {shell} takes nothing more; use bastion completion {shell}")
    if shell == "zsh":
        print("autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit")
    print(script(), end="")
    print("complete -F _bastion bastion")
    return 0


def _words(call: Invocation, kind: str) -> list[str]:
    """The names of this kind, as the bucket has them."""
    if kind == "types":
        return [each.name for each in instance_types.table().values() if each.served]
    client, _ = open_client(call)
    status = client.status()
    if status is None:
        return []
    if kind == "projects":
        return sorted({*status.projects, *(entry.project_id for entry in status.jobs)})
    if kind == "users":
        return sorted({entry.user_id for entry in status.jobs})
    return sorted(status.names) if kind == "live" else client.names()


def script() -> str:
    first = dict.fromkeys(entry.name.split()[0] for entry in ENTRIES)
    groups = ""
    for group in GROUPS:
        members = " ".join(entry.name.split()[1] for entry in ENTRIES if entry.name.split()[0] == group)
        groups += f'            {group}) words="{members}" ;;\n'
    commands = ""
    for entry in ENTRIES:
        pattern = f'"{entry.name}"' if " " in entry.name else f'"{entry.name} "*'
        # After a group's name complete its commands first, then the command's flags.
        condition = "[[ $COMP_CWORD -gt 2 ]] && " if " " in entry.name else ""
        command = entry.load()
        operands = f" operands={command.completes}" * bool(command.completes)
        commands += f'            {pattern}) {condition}words="{" ".join(_flags(command))}"{operands} ;;\n'
    flags = "".join(
        f"        --{flag}|--{flag.replace('_', '-')}) words=$(bastion completion words {kind} 2>/dev/null) ;;\n"
        for flag, kind in _FLAGS.items()
    )
    return _SCRIPT.format(first=" ".join(first), groups=groups, commands=commands, flags=flags)


def _flags(command: Command) -> list[str]:
    return [f"--{flag.name}{'' if flag.boolean else '='}" for flag in own_flags(command.values())] + ["--help"]


COMPLETION = Command(
    summary="Prints a completion script for bash or zsh.",
    usage="bash|zsh",
    details="""The script completes commands and flags without starting bastion, and names of jobs, projects, users and
        instance types by asking the bastion in use.""",
    examples=('eval "$(bastion completion bash)"', "bastion completion zsh >> ~/.zshrc"),
    operands=(1, 2),
    run=_run,
)
