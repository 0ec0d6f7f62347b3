"""Settings of the whole suite.

Property tests try the same examples in every run, so that a red run means a change; `make soak` tries new ones, and
`make mutants` only a few.
"""

from __future__ import annotations

import gc
import os
import signal
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings

from bastion.emulators.agents import AGENT_DIR
from bastion.testing.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.s3_server import S3Server

settings.register_profile("repeatable", derandomize=True, deadline=None)
# A mistake is either found by few examples, or by another test; nobody reads the smallest one.
settings.register_profile(
    "mutants", derandomize=True, deadline=None, database=None, max_examples=25, phases=(Phase.explicit, Phase.generate)
)
settings.register_profile("soak", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# A shell starts background jobs with SIGINT ignored, and children inherit that: a test's Ctrl-C would do nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Files whose tests mostly wait for processes, and those that mostly compute; the longest by name.
_WAITING = (
    "e2e/test_training", "e2e/test_gs_root", "long/", "e2e/test_memory_attacks", "e2e/test_first_light",
    "e2e/test_emulator_vms", "e2e/test_readme", "e2e/test_random_kills", "e2e/test_full_disk", "e2e/test_daemon_death",
    "e2e/", "integration/deploy/",
)  # fmt: skip
_COMPUTING = (
    "sim/test_fault_classes", "unit/client/test_request_counts", "sim/test_faults",
    "property/test_scheduler_properties", "sim/", "contract/", "adversarial/", "integration/", "cli/",
)  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect no garbage among thousands of new items, nor look through them again for each of their tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files for several workers: a file that waits, then two that compute, the longest first."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0].removeprefix("tests/"), []).append(item)
    waiting = sorted((path for path in files if path.startswith(_WAITING)), key=lambda path: _rank(path, _WAITING))
    computing = sorted(files.keys() - waiting, key=lambda path: (_rank(path, _COMPUTING), path))
    order: list[str] = []
    for number, path in enumerate(waiting):
        order += [path, *computing[2 * number : 2 * number + 2]]
    items[:] = [item for path in (*order, *computing[2 * len(waiting) :]) for item in files[path]]


def _rank(path: str, starts: tuple[str, ...]) -> int:
    return next((rank for rank, start in enumerate(starts) if path.startswith(start)), len(starts))


@pytest.fixture(scope="session", autouse=True)
def agents(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One folder for all agents of all workers: to pack and unpack one costs two seconds of a core."""
    own = tmp_path_factory.getbasetemp()
    os.environ[AGENT_DIR] = str((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "agents")


@pytest.fixture
def cluster() -> Cluster:
    """A simulated bastion."""
    return Cluster()


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are named by their argument: what is compressed or signed may differ between two workers' collections."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> S3Server:
    """A real S3 server, the same for all workers of this run."""
    from tests.support.s3_server import server_of_this_run  # boto3 takes a quarter of a second to import

    base = tmp_path_factory.getbasetemp()
    return server_of_this_run((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "s3-server")
