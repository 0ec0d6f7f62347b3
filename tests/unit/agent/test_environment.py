"""The environment of the user's command."""

import json
import os

from bastion.agent import pod, rendezvous
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
    gpus: int | None = None,
    hosts_of_job: tuple[str, ...] = (),
) -> CommandEnvironment:
    hosts = 2 if accelerator and not gpus else 1
    arguments = AgentArguments(
        root="/buckets/team-bastion",
        bastion="team-bastion",
        job="train",
        run=RUN,
        run_key="ab" * 32,
        accelerator_type=accelerator,
        devices_per_host=4 if accelerator else 0,
        hosts_per_slice=hosts,
        num_slices=num_slices,
        slice_index=slice_index,
        gpus_per_host=gpus,
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
        step_file="/state/step",
        results_file="/state/results",
        coordinator="10.0.0.1:20123" if accelerator else "",
        emulated=emulated,
        cpus=cpus,
        interpreter="/opt/bastion/bin/python",
        hosts=hosts_of_job,
        hostfile="/state/hostfile",
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
        "BASTION_STEP_FILE": "/state/step",
        "BASTION_RESULTS_FILE": "/state/results",
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


def test_hosts_with_gpus_are_nodes_of_torchrun_jax_and_tensorflow_and_no_tpu():
    found = build(accelerator="h100-8", num_slices=2, slice_index=1, gpus=8, hosts_of_job=("10.0.0.1", "fd00::2"))
    variables = found.variables
    assert {name: value for name, value in variables.items() if name.startswith("PET_")} == {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "8",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "29500",
    }
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"], variables["NODE_RANK"]) == ("10.0.0.1", "29500", "1")
    assert variables["JAX_COORDINATOR_ADDRESS"] == "10.0.0.1:20123"
    assert (variables["JAX_NUM_PROCESSES"], variables["JAX_PROCESS_ID"]) == ("2", "1")
    assert json.loads(variables["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.1:2222", "[fd00::2]:2222"]},
        "task": {"type": "worker", "index": 1},
    }
    assert variables["BASTION_HOSTFILE"] == "/state/hostfile"
    assert variables["PYTHONPATH"] == str(rendezvous.JAX_HOOK)
    # Which process is which is the launcher's; TPU names would make JAX look for a TPU.
    others = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "TPU_WORKER_ID", "MEGASCALE_NUM_SLICES")
    assert [name for name in others if name in variables] == []


def test_one_host_with_gpus_is_a_whole_job():
    variables = build(accelerator="l4-4", gpus=4).variables
    assert (variables["PET_NNODES"], variables["JAX_NUM_PROCESSES"], variables["JAX_PROCESS_ID"]) == ("1", "1", "0")
    assert "TF_CONFIG" not in variables
    assert "RANK" not in variables


def test_where_a_host_has_one_gpu_a_process_needs_no_launcher():
    variables = build(accelerator="a100-1", num_slices=3, slice_index=2, gpus=1).variables
    ranks = [variables[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    assert ranks == ["2", "3", "0", "1"]


def test_ranks_that_a_job_sets_are_remarked_where_hosts_have_several_gpus():
    given = {"RANK": "0", "WORLD_SIZE": "2", "LR": "0.1"}
    several = build(accelerator="h100-8", num_slices=2, gpus=8, env=given)
    assert (several.variables["RANK"], several.overridden) == ("0", ())
    [note] = several.notes
    assert note.startswith("the job sets RANK, WORLD_SIZE, which every process of every host gets; launchers such as")
    assert build(accelerator="h100-8", num_slices=2, gpus=8, env={"LR": "0.1"}).notes == ()
    # One value is right there, or ours wins.
    assert build(accelerator="a100-1", gpus=1, env=given).notes == ()
    two = build(accelerator="a100-1", num_slices=2, slice_index=1, gpus=1, env=given)
    assert (two.notes, two.overridden) == ((), ("RANK",))


def test_emulated_hosts_with_gpus_have_as_many_cpu_devices_and_ports_of_their_own():
    variables = build(accelerator="a100-2", num_slices=2, gpus=2, emulated=True).variables
    assert (variables["JAX_PLATFORMS"], variables["PET_MASTER_PORT"]) == ("cpu", "20124")
    assert "BASTION_COORDINATOR_ADDRESS" not in variables
    assert "JAX_FORCE_TPU_INIT" not in variables
    assert str(SLICE_HOOK) not in variables["PYTHONPATH"]


def test_the_hostfile_has_a_line_for_each_host():
    arguments = AgentArguments(
        root="/r", bastion="b", job="j", run=RUN, run_key="ab" * 32, accelerator_type="h100-8", gpus_per_host=8
    )
    identity = HostIdentity(arguments=arguments, worker=0, own_address="10.0.0.9")
    assert rendezvous.hostfile_text(identity, ["10.0.0.1", "10.0.0.2"]) == "10.0.0.1 slots=8\n10.0.0.2 slots=8\n"
    assert rendezvous.hostfile_text(identity, []) == "10.0.0.9 slots=8\n"
