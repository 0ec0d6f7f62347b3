"""How the processes of a job's command are known on a host: a variable that children inherit."""

from __future__ import annotations

COMMAND_MARKER = "BASTION_COMMAND"


def command_marker(run: str, host: int, public_key: str) -> str:
    """Return the variable's value: another run, or another bastion's run of the same name, has another one."""
    return f"{run}.{host}.{public_key[:8]}"
