"""The hook that lets `jax.distributed.initialize()` find hosts with GPUs, with a JAX of a few lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bastion.agent.command import stacks
from bastion.agent.rendezvous import JAX_HOOK

CLUSTERS = """
class ClusterEnv:
    _cluster_types = []
    def __init_subclass__(cls):
        cls._cluster_types.append(cls)
class OmpiCluster(ClusterEnv): pass
class K8sCluster(ClusterEnv): pass
"""
SHOW = """
import sys
from jax._src.clusters import ClusterEnv
import sitecustomize
print([each.__name__ for each in ClusterEnv._cluster_types], getattr(sitecustomize, "mine", ""))
ours = next(each for each in ClusterEnv._cluster_types if each.__name__ == "BastionCluster")
print(ours.is_env_present() and (ours.get_coordinator_address(5), ours.get_process_count(), ours.get_process_id()))
"""


def run(folder: Path, clusters: str, **environment: str) -> list[str]:
    package = folder / "jax" / "_src" / "clusters"
    package.mkdir(parents=True)
    for init in (folder / "jax" / "__init__.py", folder / "jax" / "_src" / "__init__.py"):
        init.write_text("")
    (package / "__init__.py").write_text(clusters)
    path = {"PYTHONPATH": f"{JAX_HOOK}:{folder}"}
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env={**path, **environment}, capture_output=True, text=True, check=False
    )
    return (done.stdout + done.stderr).splitlines()


def test_it_reads_our_variables_and_comes_before_kubernetes(tmp_path: Path) -> None:
    variables = {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:8482", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    (tmp_path / "sitecustomize.py").write_text('mine = "the user\'s runs, too"')
    assert run(tmp_path, CLUSTERS, **variables) == [
        "['OmpiCluster', 'BastionCluster', 'K8sCluster'] the user's runs, too",
        "('10.0.0.1:8482', 2, 1)",
    ]


def test_without_the_variables_it_is_not_there(tmp_path: Path) -> None:
    assert run(tmp_path, CLUSTERS)[-1] == "False"


def test_another_jax_works_without_it_and_says_what_is_missing(tmp_path: Path) -> None:
    lines = run(tmp_path, "ClusterEnv = None")
    assert lines[0].startswith("bastion: jax.distributed.initialize() needs arguments: ")


def test_the_hook_for_stacks_the_one_for_jax_and_the_users_own_run_once_each(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('own')")
    show = "import faulthandler, os, signal, sys; os.kill(os.getpid(), 60); print(len(sys.meta_path))"
    both = f"{JAX_HOOK}:{stacks.HOOK}"
    for path in (f"{stacks.HOOK}:{JAX_HOOK}:{tmp_path}", f"{both}:{tmp_path}", f"{both}:{both}:{tmp_path}:{both}"):
        done = subprocess.run(
            [sys.executable, "-c", show],
            env={"PYTHONPATH": path, "BASTION_STACKS_SIGNAL": "60"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines()[0] == "own"
        assert len(done.stdout.splitlines()) == 2
        assert done.stderr.count("most recent call first") == 1


def test_a_python_without_a_working_faulthandler_starts_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "faulthandler.py").write_text("raise RuntimeError('broken')")
    done = subprocess.run(
        [sys.executable, "-c", "print('up')"],
        env={"PYTHONPATH": f"{stacks.HOOK}:{tmp_path}", "BASTION_STACKS_SIGNAL": "sixty"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("up\n", "")
