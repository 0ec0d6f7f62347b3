"""`bastion proxy keyring`: create and rotate keys in a file that replaces Cloud KMS."""

from __future__ import annotations

import difflib
from pathlib import Path

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import plain
from bastion.core.encryption.key_names import version_name
from bastion.core.errors import Refused

_ACTIONS = ("create", "rotate")


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "key",
        None,
        "The key's full name, as in Cloud KMS: projects/P/locations/L/keyRings/R/cryptoKeys/K.",
        flag_values=values,
    )


def _run(call: Invocation) -> int:
    action, file = call.operands
    if action not in _ACTIONS:
        near = difflib.get_close_matches(action, _ACTIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(_ACTIONS)}"
        raise Refused(f"bastion proxy keyring has no action {plain(action)}; {hint}")
    if not call.flags.key:
        raise Refused("--key is required, like --key=projects/P/locations/L/keyRings/R/cryptoKeys/K")
    from bastion.adapters.kms import keyring

    act = keyring.create if action == "create" else keyring.rotate
    print(version_name(call.flags.key, act(Path(file), call.flags.key)))
    return 0


KEYRING = Command(
    summary="Creates a key in a keyring file, or gives it a new primary version.",
    usage="create|rotate FILE --key=NAME",
    details="""A keyring holds the storage proxy's keys without Cloud KMS; set GCS_PROXY_KEYRING=FILE for the proxy.
        create makes the file, or adds a key to an existing one. rotate adds a new version, which encrypts new objects;
        older versions stay in the file and decrypt older objects. The command prints the version's name. A running
        proxy uses the new version within five minutes.

        Whoever has the file can read everything that was encrypted with it, and without the file nobody can. Its mode
        is 0600. Keep a copy where the bucket's provider cannot read it.""",
    examples=(
        "bastion proxy keyring create keyring.json --key=projects/p/locations/global/keyRings/r/cryptoKeys/k",
        "bastion proxy keyring rotate keyring.json --key=projects/p/locations/global/keyRings/r/cryptoKeys/k",
    ),
    operands=(2, 2),
    takes_target=False,
    define=_define,
    run=_run,
)
