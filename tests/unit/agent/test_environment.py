"""The environment of the user's command."""

import os

from bastion.agent import pod
from bastion.agent.environment import POD_VARIABLES, SLICE_HOOK, CommandEnvironment, HostFacts, command_environment
from bastion.agent.identity import HostIdentity
from bastion.core.bucket.protocol import AgentArguments, Order, OrderAction

RUN = "abcdefghij-2"
PEERS = ("10.0.0.5", "10.0.0.6")


def build(
    *,
    base: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    accelerator: str = "v4-16",
    num_slices: int = 1,
    slice_index: int = 0,
    emulated: bool = False,
    cpus: int = 2,
    slices_address: str = "",
    tpu_variables: dict[str, str] | None = None,
) -> CommandEnvironment:
    hosts = 2 if accelerator else 1
    arguments = AgentArguments(
        root="/buckets/team-bastion",
        bastion="team-bastion",
        job="train",
        run=RUN,
        token="t" * 32,
        accelerator_type=accelerator,
        devices_per_host=4 if accelerator else 0,
        hosts_per_slice=hosts,
        num_slices=num_slices,
        slice_index=slice_index,
    )
    identity = HostIdentity(
        arguments=arguments,
        worker=hosts - 1,
        peers=PEERS if accelerator else (),
        slices_address=slices_address,
        tpu_variables=tpu_variables or {},
    )
    order = Order(run=RUN, action=OrderAction.RUN, command="x", env=env or {}, user_id="ann", project_id="vision")
    facts = HostFacts(
        marker="marker",
        preempt_file="/state/preempt",
        checkpoint_file="/state/checkpoint",
        coordinator="10.0.0.1:20123" if accelerator else "",
        emulated=emulated,
        cpus=cpus,
        interpreter="/opt/bastion/bin/python",
    )
    return command_environment(base if base is not None else {"PATH": "/usr/bin", "HOME": "/h"}, order, identity, facts)


def test_a_job_without_a_slice_learns_who_it_is_and_no_tpu_names():
    built = build(accelerator="", env={"LR": "0.1"})
    assert built.variables == {
        "HOME": "/h",
        "LR": "0.1",
        "PATH": "/opt/bastion/bin:/usr/bin",
        "PYTHONUNBUFFERED": "1",
        "BASTION_JOB": "train",
        "BASTION_RUN": RUN,
        "BASTION_ATTEMPT": "2",
        "BASTION_TRY": "1",
        "BASTION_USER_ID": "ann",
        "BASTION_PROJECT_ID": "vision",
        "BASTION_HOST_INDEX": "0",
        "BASTION_NUM_HOSTS": "1",
        "BASTION_PREEMPT_FILE": "/state/preempt",
        "BASTION_CHECKPOINT_FILE": "/state/checkpoint",
        "BASTION_COMMAND": "marker",
        "BASTION_OUTPUT_URL": "/buckets/team-bastion/outputs/train/abcdefghij/shared",
    }
    assert built.overridden == ()


def test_a_real_slice_gets_its_place_and_keeps_its_path():
    added = build().variables
    assert added["TPU_WORKER_ID"] == "1"
    assert added["TPU_WORKER_HOSTNAMES"] == "10.0.0.5,10.0.0.6"
    assert added["BASTION_HOST_INDEX"] == "1"
    assert added["PATH"] == "/usr/bin"
    assert not [name for name in added if name.startswith(("MEGASCALE_", "JAX_"))]


def test_several_slices_find_each_other_at_host_0_of_slice_0():
    added = build(num_slices=2, slice_index=1).variables
    assert added["MEGASCALE_COORDINATOR_ADDRESS"] == "10.0.0.1:8080"
    assert added["MEGASCALE_NUM_SLICES"] == "2"
    assert added["MEGASCALE_SLICE_ID"] == "1"
    assert added["BASTION_HOST_INDEX"] == "3"
    assert added["BASTION_NUM_HOSTS"] == "4"


def test_slices_that_the_platform_made_together_meet_where_it_says():
    added = build(num_slices=2, slices_address="10.0.0.9:8470").variables
    assert added["MEGASCALE_COORDINATOR_ADDRESS"] == "10.0.0.9:8470"


def test_an_emulated_slice_gets_the_cpu_recipe():
    added = build(emulated=True).variables
    expected = {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "4",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "PJRT_NPROC": "32",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "PYTHONPATH": str(SLICE_HOOK),
        "BASTION_COORDINATOR_ADDRESS": "10.0.0.1:20123",
        "BASTION_NUM_PROCESSES": "2",
        "BASTION_PROCESS_ID": "1",
        "JAX_COORDINATOR_BIND_ADDRESS": "10.0.0.1:20123",
        "JAX_FORCE_TPU_INIT": "1",
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": "10.0.0.5,10.0.0.6",
        "JAX_COORDINATOR_PORT": "20123",
        "MEGASCALE_NUM_SLICES": "1",
        "MEGASCALE_SLICE_ID": "0",
        "MEGASCALE_COORDINATOR_ADDRESS": "",
        "PATH": "/opt/bastion/bin:/usr/bin",
    }
    assert {name: added[name] for name in expected} == expected


def test_the_hook_is_a_namespace_package_that_exists():
    assert (SLICE_HOOK / "jax_plugins" / "bastion_local_slice.py").is_file()
    assert not (SLICE_HOOK / "jax_plugins" / "__init__.py").exists()


def test_a_large_machine_keeps_its_own_number_of_threads():
    assert build(emulated=True, cpus=64).variables["PJRT_NPROC"] == "64"


def test_the_users_flags_and_python_path_stay_beside_ours():
    built = build(emulated=True, env={"XLA_FLAGS": "--xla_dump_to=/d", "PYTHONPATH": "/code", "PATH": "/mine"})
    assert built.variables["XLA_FLAGS"] == "--xla_dump_to=/d --xla_force_host_platform_device_count=4"
    assert built.variables["PYTHONPATH"] == f"{SLICE_HOOK}{os.pathsep}/code"
    assert built.variables["PATH"] == "/opt/bastion/bin:/mine"
    assert built.overridden == ()


def test_names_the_agent_sets_win_and_are_told_and_others_pass():
    built = build(env={"BASTION_JOB": "other", "TPU_WORKER_ID": "7", "BASTION_TIER": "1", "TPU_NAME": "x"})
    assert built.variables["BASTION_JOB"] == "train"
    assert built.variables["TPU_WORKER_ID"] == "1"
    assert built.variables["BASTION_TIER"] == "1"
    assert built.variables["TPU_NAME"] == "x"
    assert built.overridden == ("BASTION_JOB", "TPU_WORKER_ID")


def test_a_value_that_is_ours_anyway_is_not_called_overridden():
    assert build(env={"BASTION_JOB": "train"}).overridden == ()


def test_the_marker_of_an_emulated_host_cannot_be_taken_away():
    built = build(base={"PATH": "/usr/bin", "BASTION_VM": "vm-1"}, env={"BASTION_VM": "", "BASTION_COMMAND": "x"})
    assert built.variables["BASTION_VM"] == "vm-1"
    assert built.variables["BASTION_COMMAND"] == "marker"
    assert built.overridden == ("BASTION_COMMAND", "BASTION_VM")


def test_the_agents_own_variables_do_not_reach_the_command():
    base = {"PATH": "/usr/bin", "BASTION_STATE_DIR": "/s", "BASTION_EMULATED_BOOT_ID": "b", "BASTION_EMULATED_TPU": "1"}
    added = build(base=base, emulated=True).variables
    assert "BASTION_STATE_DIR" not in added
    assert "BASTION_EMULATED_BOOT_ID" not in added


def test_python_prints_at_once_unless_the_user_wants_else():
    assert build().variables["PYTHONUNBUFFERED"] == "1"
    wanted = build(env={"PYTHONUNBUFFERED": ""})
    assert (wanted.variables["PYTHONUNBUFFERED"], wanted.overridden) == ("", ())


def test_what_the_platform_set_in_a_pod_wins_over_the_agents_own_and_the_jobs():
    platform = {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "7", "MEGASCALE_COORDINATOR_ADDRESS": "a:9"}
    built = build(
        num_slices=2, base={"PATH": "/usr/bin", **platform}, tpu_variables=platform, env={"TPU_WORKER_ID": "0"}
    )
    assert {name: built.variables[name] for name in platform} == platform
    assert (built.variables["MEGASCALE_NUM_SLICES"], built.variables["MEGASCALE_SLICE_ID"]) == ("2", "0")
    assert built.overridden == ("TPU_WORKER_ID",)


def test_on_a_vm_variables_of_the_agents_environment_are_not_the_platforms():
    assert build(base={"TPU_WORKER_HOSTNAMES": "stale"}).variables["TPU_WORKER_HOSTNAMES"] == "10.0.0.5,10.0.0.6"


def test_the_variables_of_a_pods_agent_do_not_reach_the_command():
    names = set(POD_VARIABLES) | {pod.ARGUMENTS, pod.POD_UID, pod.POD_IP, pod.SLICE_INDEX, pod.WORKER, pod.PEERS}
    names |= {pod.TERMINATION_LOG, "BASTION_STATE_DIR"}
    built = build(base={"PATH": "/usr/bin", **dict.fromkeys(names, "x")})
    assert names & set(built.variables) == set()
