"""`bastion proxy keyring`: makes and rotates the keys in a file that stands in for Cloud KMS.

Layer: cli.
"""

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
        "The key's full name, spelt as in Cloud KMS: projects/P/locations/L/keyRings/R/cryptoKeys/K.",
        flag_values=values,
    )


def _run(call: Invocation) -> int:
    action, file = call.operands
    if action not in _ACTIONS:
        near = difflib.get_close_matches(action, _ACTIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(_ACTIONS)}"
        raise Refused(f"bastion proxy keyring has no action {plain(action)}; {hint}")
    if not call.flags.key:
        raise Refused("--key is missing; write --key=projects/P/locations/L/keyRings/R/cryptoKeys/K")
    from bastion.adapters.kms import keyring

    act = keyring.create if action == "create" else keyring.rotate
    print(version_name(call.flags.key, act(Path(file), call.flags.key)))
    return 0


KEYRING = Command(
    summary="Makes a key in a keyring file, or gives it a new primary version.",
    usage="create|rotate FILE --key=NAME",
    details="""A keyring keeps the storage proxy's keys where no Cloud KMS is wanted; GCS_PROXY_KEYRING=FILE tells the
        proxy of it. create makes the file, or adds a key to one that exists. rotate makes a new version, which new
        objects are stored under; older versions stay in the file and open what was stored before. It prints the
        version's name. A running proxy takes the new version up by itself within five minutes.

        Who has the file can read everything that was stored under it, and without it nobody can: its mode is 0600,
        and a copy belongs where the bucket's provider cannot read it.""",
    examples=(
        "bastion proxy keyring create keyring.json --key=projects/p/locations/global/keyRings/r/cryptoKeys/k",
        "bastion proxy keyring rotate keyring.json --key=projects/p/locations/global/keyRings/r/cryptoKeys/k",
    ),
    operands=(2, 2),
    takes_target=False,
    define=_define,
    run=_run,
)
