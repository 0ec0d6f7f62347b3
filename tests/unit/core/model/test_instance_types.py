"""Instance types: what users may ask for, and what they read when they ask for something else."""

from __future__ import annotations

import pytest

from bastion.core.errors import UnknownInstanceType
from bastion.core.model.instance_types import cloud_tpu_types, kubernetes_types, lookup, served_types, table


@pytest.mark.parametrize(
    ("name", "hosts", "chips_per_host", "devices_per_host", "resource_type", "amount"),
    [
        ("tpu-v2-8", 1, 4, 8, "v2", 8),
        ("tpu-v3-32", 4, 4, 8, "v3", 32),
        ("tpu-v4-32", 4, 4, 4, "v4", 32),
        ("tpu-v5litepod-8", 1, 8, 8, "v5litepod", 8),
        ("tpu-v5litepod-16", 4, 4, 4, "v5litepod", 16),
        ("tpu-v5p-16", 2, 4, 4, "v5p", 16),
        ("tpu-v6e-8", 1, 8, 8, "v6e", 8),
        ("gpu-l4-1", 1, 1, 1, "l4", 1),
        ("gpu-a100-80gb-4", 1, 4, 4, "a100-80gb", 4),
        ("gpu-h100-mega-8", 1, 8, 8, "h100-mega", 8),
    ],
)
def test_a_type_says_its_hosts_its_devices_and_what_it_costs(
    name: str, hosts: int, chips_per_host: int, devices_per_host: int, resource_type: str, amount: int
) -> None:
    kind = lookup(name)
    assert (kind.hosts, kind.chips_per_host, kind.devices_per_host) == (hosts, chips_per_host, devices_per_host)
    assert (kind.resource_type, kind.amount) == (resource_type, amount)


def test_every_served_type_is_found_by_its_own_name() -> None:
    served = [kind for kind in table().values() if kind.served]
    assert [lookup(kind.name) for kind in served] == served
    gpus = ("a100", "a100-80gb", "b200", "h100", "h100-mega", "h200", "l4")
    assert served_types() == (*gpus, "tpu7x", "v2", "v3", "v4", "v5litepod", "v5p", "v6e")
    assert cloud_tpu_types() == ("v2", "v3", "v4", "v5litepod", "v5p", "v6e")
    assert kubernetes_types() == (*gpus, "tpu7x", "v4", "v5litepod", "v5p", "v6e")
    assert kubernetes_types("gke") == kubernetes_types()
    assert kubernetes_types("eks") == ("a100", "a100-80gb", "b200", "h100", "h200")
    assert set(kubernetes_types()) - set(kubernetes_types("generic")) == {"h100-mega"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("a100-8", "gpu-a100-8"),
        ("gpu-a100-40gb-8", "gpu-a100-8"),
        ("nvidia-a100-4", "gpu-a100-4"),
        ("nvidia-tesla-a100-1", "gpu-a100-1"),
        ("tpu-h100-80gb-8", "gpu-h100-8"),
        ("GPU-H100-8", "gpu-h100-8"),
        ("h100-mega-80gb-8", "gpu-h100-mega-8"),
        ("h200-141gb-8", "gpu-h200-8"),
        ("p4d.24xlarge", "gpu-a100-8"),
        ("p5.4xlarge", "gpu-h100-1"),
    ],
)
def test_other_names_of_gpus_are_answered_with_ours(name: str, meant: str) -> None:
    with pytest.raises(UnknownInstanceType) as refusal:
        lookup(name)
    assert str(refusal.value) == f"{name} is not an instance type; did you mean {meant}?"


@pytest.mark.parametrize("name", ["gb200-4", "gpu-gb200-4", "nvidia-gb200-4"])
def test_what_is_known_and_not_served_is_refused_with_that_as_the_reason(name: str) -> None:
    with pytest.raises(UnknownInstanceType, match=r"neither Cloud TPU nor Bastion on Kubernetes offers ") as refusal:
        lookup(name)
    assert str(refusal.value).endswith("choose a type of " + ", ".join(served_types()))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tpu-v4-33", "tpu-v4-33 is not a valid size; v4 has tpu-v4-8, tpu-v4-16, tpu-v4-32,"),
        ("tpu-v5litepod-3", "v5litepod has tpu-v5litepod-1, tpu-v5litepod-4, tpu-v5litepod-8,"),
        ("tpu-v5e-8", "tpu-v5e-8 is not an instance type; did you mean tpu-v5litepod-8?"),
        ("TPU-V4-8", "TPU-V4-8 is not an instance type; did you mean tpu-v4-8?"),
        ("tpu-v4", "tpu-v4 is not a valid size; v4 has tpu-v4-8,"),
        ("tpu-v5e-3", "tpu-v5e-3 is not a valid size; v5litepod has tpu-v5litepod-1,"),
        ("v4-32", "did you mean tpu-v4-32?"),
        ("tpu-tpu7x-8", "did you mean tpu7x-8?"),
        ("tpu-7x-8", "did you mean tpu7x-8?"),
        ("tpu-v7x-16", "did you mean tpu7x-16?"),
        ("tpu7x-9", "tpu7x-9 is not a valid size; tpu7x has tpu7x-2, tpu7x-8,"),
        ("tpu-v44-32", "did you mean tpu-v4-32"),
        ("gpu-a100-3", "gpu-a100-3 is not a valid size; a100 has gpu-a100-1, gpu-a100-2, gpu-a100-4, gpu-a100-8"),
        ("gpu-h200-1", "gpu-h200-1 is not a valid size; h200 has gpu-h200-8"),
        ("", "valid resource types: gpu-a100-80gb-N, gpu-a100-N"),
        ("-", "valid resource types: gpu-a100-80gb-N, gpu-a100-N"),
        ("frob", "gpu-l4-N, tpu-v2-N, tpu-v3-N, tpu-v4-N, tpu-v5litepod-N, tpu-v5p-N, tpu-v6e-N, tpu7x-N"),
    ],
)
def test_a_mistyped_name_is_answered_with_names_that_exist(name: str, words: str) -> None:
    with pytest.raises(UnknownInstanceType) as refusal:
        lookup(name)
    assert words in str(refusal.value)
