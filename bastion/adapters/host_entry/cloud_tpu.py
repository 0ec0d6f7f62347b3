"""Enter a host of a Cloud TPU node by `gcloud compute tpus tpu-vm ssh`.

The right to it is the cloud's: who may log in to the node, and use sudo there. On the host, a script finds the job's
command by its marker; it becomes the command's user, in its environment and folder, or refuses. Nothing is installed.

What people type passes three shells' quoting unchanged: gcloud gets a list, and the host's login shell one line.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence

from bastion.adapters.host_entry.signals import terminal_signals
from bastion.core.bucket.markers import COMMAND_MARKER
from bastion.core.errors import Refused
from bastion.ports import RunningHost

_SHELL = ("bash",)
# `bash -c SCRIPT bash MARKER COMMAND...` as root. The first process of the command is the one whose parent does not
# have the marker. Needs nothing but bash, grep, sed and util-linux.
_SCRIPT = r"""
marked() { grep -qzxF -e "$entry" "$1/environ" 2>/dev/null; }
of() { sed -n "s/^$2:[[:space:]]*//p" "$1/status" 2>/dev/null; }
entry="MARKER_NAME=$1"; shift
for found in /proc/[0-9]*; do
  if marked "$found" && ! marked "/proc/$(of "$found" PPid)"; then
    mapfile -d '' -t variables <"$found/environ" && cd "$found/cwd" || continue
    read -r user _ <<<"$(of "$found" Uid)"; read -r group _ <<<"$(of "$found" Gid)"
    groups=$(of "$found" Groups | sed 's/[[:space:]]*$//; s/[[:space:]][[:space:]]*/,/g')
    become=()
    if [ "$user" != "$(id -u)" ]; then
      become=(setpriv --reuid="$user" --regid="$group")
      if [ -n "$groups" ]; then become+=(--groups="$groups"); else become+=(--clear-groups); fi
    fi
    if [ -n "${TERM-}" ]; then variables=("TERM=$TERM" "${variables[@]}"); fi
    exec "${become[@]}" env -i -- "${variables[@]}" "$@"
  fi
done
echo "bastion: no command of this attempt runs on this host now; see 'bastion why'" >&2
exit 64
""".replace("MARKER_NAME", COMMAND_MARKER)


class CloudTpuHosts:
    """Enters hosts of Cloud TPU nodes.

    Args:
        flags: More flags of `gcloud compute tpus tpu-vm ssh`, like `--project=TEAM` or `--internal-ip`.
    """

    def __init__(self, *, flags: Sequence[str] = ()) -> None:
        self._flags = tuple(flags)

    def arguments(self, host: RunningHost, command: Sequence[str], *, terminal: bool) -> list[str]:
        """Return gcloud's arguments. `terminal`: let ssh make one on the host."""
        line = shlex.join(["sudo", "-n", "bash", "-c", _SCRIPT, "bash", host.marker, *(command or _SHELL)])
        return [
            *("compute", "tpus", "tpu-vm", "ssh", host.node),
            f"--zone={host.zone}",
            f"--worker={host.node_worker}",
            *(["--ssh-flag=-t"] if terminal else []),
            *self._flags,
            f"--command={line}",
        ]

    def enter(self, host: RunningHost, command: Sequence[str], *, begin: Callable[[], object] = lambda: None) -> int:
        if not host.zone:
            raise Refused(f"the zone of {host.shown} is not known, so gcloud cannot find its node {host.node}")
        program = shutil.which("gcloud")
        if program is None:
            raise Refused(
                f"{host.shown} is a host of the Cloud TPU node {host.node}, which gcloud enters, and gcloud is "
                "not installed; install the Google Cloud CLI, or use this command where it is"
            )
        begin()
        terminal = os.isatty(0) and os.isatty(1)
        with terminal_signals(other_session=False) as foreground:
            return foreground.follow(subprocess.Popen([program, *self.arguments(host, command, terminal=terminal)]))
