"""`bastion completion bash|zsh`: a completion script for commands and flags.

The script is generated from the registry and self-contained: pressing Tab starts no Python.
"""

from __future__ import annotations

from bastion.cli.command import Command, Invocation
from bastion.cli.help import own_flags
from bastion.cli.output import plain
from bastion.cli.registry import ENTRIES, GROUPS
from bastion.core.errors import Refused

_SCRIPT = """\
# Completion of bastion, for bash and (through bashcompinit) zsh.
_bastion() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} words="" i
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
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    if ((${{#COMPREPLY[@]}} == 0)); then COMPREPLY=($(compgen -f -- "${{current#*=}}")); fi
    if [[ ${{COMPREPLY[0]}} == *= ]]; then compopt -o nospace 2>/dev/null; fi
}}
"""


def _run(call: Invocation) -> int:
    shell = call.operands[0]
    if shell not in ("bash", "zsh"):
        raise Refused(f"no completion for {plain(shell)!r}; use bash or zsh")
    if shell == "zsh":
        print("autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit")
    print(script(), end="")
    print("complete -F _bastion bastion")
    return 0


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
        commands += f'            {pattern}) {condition}words="{" ".join(_flags(entry.load()))}" ;;\n'
    return _SCRIPT.format(first=" ".join(first), groups=groups, commands=commands)


def _flags(command: Command) -> list[str]:
    return [f"--{flag.name}{'' if flag.boolean else '='}" for flag in own_flags(command.values())] + ["--help"]


COMPLETION = Command(
    summary="Prints a completion script for bash or zsh.",
    usage="bash|zsh",
    details="The script completes commands and flags without starting bastion.",
    examples=('eval "$(bastion completion bash)"', "bastion completion zsh >> ~/.zshrc"),
    operands=(1, 1),
    takes_target=False,
    run=_run,
)
