"""The quota file that a new local bastion begins with."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

from bastion.core.bucket import keys
from bastion.core.errors import PreconditionFailed
from bastion.wiring import local_kubernetes
from bastion.wiring.local_home import LocalHome
from bastion.wiring.roots import open_root

_TEXT = """\
# Who may use what. The daemon applies a saved change within a second.
# `bastion quota check FILE` explains it and finds errors.
[toml-schema]
version = "1"

# Units as in the instance type's name: tpu-v4-32 takes 32 of v4. Each emulated host is a process of this machine,
# so the pool is small: at most 16 hosts of one type.
[total_resources]
{units}

# Regular expressions; the whole user id must match.
[project_membership]
default = [{user}]

# On one machine a restart is cheap: idle units are lent at once.
[project_rules]
keep_idle_seconds = 0.0

[project_resources.default]
{shares}
"""
_UNITS = {"v2": 128, "v3": 128, "v4": 128, "v5litepod": 64, "v5p": 128, "v6e": 64}
_UNITS_OF_OTHERS = 64


def starter_quota(user: str, pools: Sequence[str] = ()) -> bytes:
    """Return a quota file that lets `user` run jobs in the project `default`, also on these pools of a cluster."""
    units = {**dict.fromkeys(local_kubernetes.resource_types(pools), _UNITS_OF_OTHERS), **_UNITS}
    pattern = re.escape(user).replace("\\", "\\\\").replace('"', '\\"')
    return _TEXT.format(
        user=f'"{pattern}"',
        units="\n".join(f"{each} = {units[each]}" for each in sorted(units)),
        shares="\n".join(f"{each} = 1.0" for each in sorted(units)),
    ).encode()


def write_starter_quota(home: LocalHome, user: str) -> None:
    store = open_root(home.root.url)
    # A quota file in force that was removed since stays in force.
    if store.head(keys.PROJECT_QUOTAS) is None and store.head(keys.QUOTAS_IN_FORCE) is None:
        with contextlib.suppress(PreconditionFailed):  # another process's first quota file is as good
            quota = starter_quota(user, local_kubernetes.pools(home.kubernetes_dir))
            store.put(keys.PROJECT_QUOTAS, quota, generation=0)
