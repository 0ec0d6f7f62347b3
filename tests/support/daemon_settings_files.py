"""Files of daemon settings for tests, and what is wrong with one."""

from __future__ import annotations

import pytest

from bastion.core.model import job_spec
from bastion.core.model.daemon_settings import SettingsError, load
from tests.support.job_specs import new_spec

GOOD = """
project = "my-project"
[defaults]
network = "net"
external_ips = false
service_account = "worker@my-project.iam"
[types.v4]
zones = ["us-central2-b"]
[types.v5litepod]
zones = ["us-west4-a", "us-central1-a"]
subnetwork = "sub"
runtime_version = "v2-alpha-tpuv5-lite"
[[tiers]]
model = "reserved"
reservation = { v4 = "r4", v5litepod = "r5" }
[[tiers]]
model = "on-demand"
zones = { v5litepod = ["us-south1-a"] }
[[tiers]]
model = "spot"
"""


def problems(text: str) -> list[str]:
    with pytest.raises(SettingsError) as refusal:
        load(text.encode())
    return [str(problem) for problem in refusal.value.problems]


def runner(instance_type: str) -> job_spec.Runner:
    found = new_spec(command="x", instance_type=instance_type).runner
    assert found is not None
    return found
