"""Decide whom this host's commands run as, from the agent's arguments (ADR 62).

Invariant: where a user is asked for and cannot be had, there is a problem instead, and no command runs. The exception
is a pod whose container does not run as root: the container already keeps the command from everything else.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass

from bastion import job_user
from bastion.agent.identity import HostIdentity
from bastion.core import limits
from bastion.core.bucket.protocol import HOST_JOB_USER
from bastion.core.errors import Refused
from bastion.job_user import JobUser

# The host and network parts of `127.100.N.W`: no two emulated hosts of a machine have the same.
_EMULATED_ADDRESS_MASK = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandUser:
    """Whom commands run as.

    Attributes:
        user: None: the agent's own user.
        problem: Why no command can run; empty if one can.
        note: For the job's log.
    """

    user: JobUser | None = None
    problem: str = ""
    note: str = ""


# In a pod, whose image has no such user.
_POD_USERS = {HOST_JOB_USER: "64000:64000"}


def decide(identity: HostIdentity, *, emulated: bool, in_pod: bool) -> CommandUser:
    """Decide, and keep the rights to become that user from all children. Call before any thread is started."""
    text = identity.arguments.job_user
    if not text:
        if identity.on_bastion:
            # The daemon's, with which a command would become any user.
            job_user.give_up_rights()
        return CommandUser()
    if emulated and ":" not in text:
        return CommandUser()  # such a host is processes of this machine's user, and has no users of its own
    own = os.geteuid()
    if in_pod and own != 0:
        return CommandUser(note=f"the container does not run as root: the command runs as its user, {own}")
    try:
        if in_pod:
            text = _POD_USERS.get(text, text)
        user = job_user.resolve(_of_address(text, identity.address) if emulated else text)
        job_user.require_rights(user)
        if own == 0 and not emulated:
            job_user.give_devices(user)
        job_user.give_nothing_to_children()
        if identity.on_bastion:
            job_user.limit_processes(limits.HOST_JOB_PROCESSES_MAX)
    except (Refused, OSError) as error:
        return CommandUser(problem=str(error))
    return CommandUser(user=user)


def _of_address(text: str, address: str) -> str:
    """The user of one of the emulated hosts that share a machine; all processes of a user belong to one host."""
    uid, _, group = text.partition(":")
    if not address or not uid.isdecimal():
        return text
    return f"{int(uid) + (int(ipaddress.ip_address(address)) & _EMULATED_ADDRESS_MASK)}:{group}"
