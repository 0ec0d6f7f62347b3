"""The page about EKS: its settings, commands and machines are those of the program."""

from __future__ import annotations

import re
from pathlib import Path

from bastion.cli import parsing
from bastion.core.model import daemon_settings, instance_types
from bastion.core.model.gpu_networks import networks
from tests.support import page_commands

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "run-on-eks.md").read_text("utf-8")
EFA = "vpc.amazonaws.com/efa"


def test_every_bastion_command_is_given_flags_and_operands_that_it_takes() -> None:
    lines = page_commands.commands(PAGE, "bastion")
    assert lines
    for words in lines:
        entry, count = parsing.find(words)
        parsing.parse(entry.name, entry.load(), words[count:])


def test_the_settings_on_the_page_are_valid() -> None:
    other_machine, no_network, whole = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    found = daemon_settings.load(whole.encode())
    assert found.clusters["east"].provider == "eks"
    assert [tier.model.value for tier in found.tiers] == ["on-demand", "spot"]
    h200 = daemon_settings.load(
        whole.replace("[[tiers]]", f"{other_machine}\n[types.h200]\nzones = ['k8s:east']\n[[tiers]]", 1).encode()
    )
    machine = h200.resource_types["h200"].pod.node_selector["node.kubernetes.io/instance-type"]
    assert networks()[machine].resources[EFA] == "32"
    assert (
        not daemon_settings.load(whole.replace("[types.h100.pod]\n", no_network).encode())
        .resource_types["h100"]
        .pod.gpu_network
    )


def test_the_table_has_every_type_of_eks_with_its_machine_and_interfaces() -> None:
    rows = dict.fromkeys(re.findall(r"^\| `(gpu-\S+)` \| `(\S+)` \| (\d+) .* \| (\d+) \|$", PAGE, re.MULTILINE))
    types = [each for each in instance_types.table().values() if "eks" in each.providers]
    assert list(rows) == [
        (each.name, each.eks_instance_type, str(each.chips_per_host), networks()[each.eks_instance_type].resources[EFA])
        for each in types
    ]
