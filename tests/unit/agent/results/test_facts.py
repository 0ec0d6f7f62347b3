"""Facts about a host."""

from pathlib import Path

import pytest

from bastion.agent.identity import HostIdentity
from bastion.agent.results import facts
from bastion.core.bucket.protocol import AgentArguments, Order, OrderAction
from bastion.core.bucket.results import Environment

RUN = "abcdefghij-1"
FOLDER = Path("/state") / f"{RUN}.0"


def of(
    root: Path, *, kind: str = "v4-16", gpus: int | None = None, environ: dict[str, str] | None = None, **more
) -> Environment:
    arguments = AgentArguments(
        root="/b",
        bastion="b",
        job="j",
        run=RUN,
        run_key="ab" * 32,
        accelerator_type=kind,
        zone="us-east5-a" if kind else None,
        devices_per_host=4 if kind and not gpus else 0,
        gpus_per_host=gpus,
        hosts_per_slice=2 if kind else 1,
    )
    order = Order(
        run=RUN, action=OrderAction.RUN, command="x", code_sha256="ab" * 32, secrets={"TF_THING": "env:THING"}
    )
    variables = more.pop("variables", {})
    return facts.of_host(
        HostIdentity(arguments=arguments, worker=0),
        order,
        variables,
        environ=environ or {},
        emulated=more.pop("emulated", False),
        run_folder=FOLDER,
        root=root,
    )


def test_a_tpu_host_names_its_zone_and_its_slice(tmp_path: Path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "processor : 0\nmodel name\t: AMD EPYC 7B12\nprocessor : 1\nmodel name : no\n"
    )
    found = of(tmp_path, variables={"BASTION_COMMIT": "0123abc"})
    assert found.processor.startswith("AMD EPYC 7B12, ")
    assert (found.accelerator, found.accelerators, found.instance_type) == ("v4-16", 8, "tpu-v4-16")
    assert (found.place, found.hosts, found.driver) == ("us-east5-a", 2, "")
    assert (found.commit, found.bundle) == ("0123abc", "ab" * 32)


def test_a_gpu_host_names_its_gpu_its_driver_and_its_node(tmp_path: Path):
    (tmp_path / "proc/driver/nvidia/gpus/0000:04:00.0").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/gpus/0000:04:00.0/information").write_text(
        "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 92\nGPU UUID: \t GPU-1\n"
    )
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("550.90.07\n")
    found = of(tmp_path, kind="h100-8", gpus=8, environ={"BASTION_NODE_NAME": "node-7"})
    assert (found.accelerator, found.accelerators, found.driver) == ("NVIDIA H100 80GB HBM3", 16, "550.90.07")
    assert (found.place, found.instance_type) == ("us-east5-a/node-7", "gpu-h100-8")


def test_an_emulated_host_says_so_and_names_this_machine(tmp_path: Path):
    found = of(tmp_path, emulated=True)
    assert found.accelerator == "emulated v4-16"
    assert found.place.startswith("us-east5-a/")


def test_a_job_on_the_bastion_has_no_accelerator(tmp_path: Path):
    found = of(tmp_path, kind="")
    assert (found.accelerator, found.accelerators, found.instance_type, found.hosts) == ("", 0, "", 1)
    assert found.place


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("XLA_FLAGS", "--xla_a", "--xla_a"),
        ("XLA_FLAGS", f"--xla_dump_to={FOLDER}/xla/dump", "--xla_dump_to=RUN/xla/dump"),
        ("LIBTPU_INIT_ARGS", "--x", "--x"),
        ("NCCL_ALGO", "Ring", "Ring"),
        ("OMP_NUM_THREADS", "4", "4"),
        ("MKL_NUM_THREADS", "4", "4"),
        ("CUDA_VISIBLE_DEVICES", "0,1", "0,1"),
        ("JAX_ENABLE_X64", "1", "1"),
        ("TF_XLA_FLAGS", "--tf", "--tf"),
        ("JAX_COORDINATOR_PORT", "20123", None),
        ("TF_CONFIG", "{}", None),
        ("HOME", "/h", None),
        ("TF_THING", "hidden-value", None),
        ("NCCL_LABEL", "x-hidden-value-x", None),
        ("JAX_API_KEY", "k", None),
        ("TF_TOKEN_x", "k", None),
    ],
)
def test_variables_that_matter_are_named_and_secrets_are_not(name: str, value: str, kept: str | None):
    found = facts.that_matter({"TF_THING": "hidden-value", name: value}, secret={"TF_THING"}, run_folder=FOLDER)
    assert found == ({} if kept is None else {name: kept})
