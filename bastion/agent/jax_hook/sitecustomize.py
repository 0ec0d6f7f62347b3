"""Let `jax.distributed.initialize()` without arguments find the job's hosts, on hosts with GPUs.

JAX reads `JAX_COORDINATOR_ADDRESS` by itself, but asks a "cluster environment" for the number of processes and its own
(jax/_src/clusters/cluster.py), and knows those of Cloud TPU, Slurm, Open MPI and of pods that may read the API server.
This adds one that reads `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`. Launchers' own come first: below mpirun, Open MPI's
variables count.

Python imports `sitecustomize` at its start, here before any other of that name, which is run at the end. Runs in the
user's interpreter, of any version: use only the standard library here, and never raise.
"""

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

_CLUSTERS = "jax._src.clusters"
_ADDRESS, _PROCESSES, _PROCESS = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


class _Finder:
    """Adds to JAX's clusters when JAX imports them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _CLUSTERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                try:
                    _add(module)
                except Exception as error:  # noqa: BLE001 - JAX works without it, with arguments
                    print(f"bastion: jax.distributed.initialize() needs arguments: {error!r}", file=sys.stderr)  # noqa: T201

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _add(clusters: Any) -> None:
    class BastionCluster(clusters.ClusterEnv):  # type: ignore[misc]
        name = "bastion"

        @classmethod
        def is_env_present(cls) -> bool:
            return all(os.environ.get(name) for name in (_ADDRESS, _PROCESSES, _PROCESS))

        @classmethod
        def get_coordinator_address(cls, *_: Any, **__: Any) -> str:
            return os.environ[_ADDRESS]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ[_PROCESSES])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ[_PROCESS])

    # The one of Kubernetes is asked last, and fails in a pod without a token.
    known = clusters.ClusterEnv._cluster_types
    known.remove(BastionCluster)
    names = [each.__name__ for each in known]
    known.insert(names.index("K8sCluster") if "K8sCluster" in names else len(known), BastionCluster)


def _run_the_next() -> None:
    # Each of Bastion's hooks runs once, however often its folder is on the path.
    done = sys.__dict__.setdefault("_bastion_hooks", [])
    done.append(__file__.rpartition("/")[0])
    path = [folder for folder in sys.path if folder not in done]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


sys.meta_path.insert(0, _Finder())
_run_the_next()
