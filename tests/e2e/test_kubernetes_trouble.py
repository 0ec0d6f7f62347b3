"""A cluster that cannot be reached as it must be: alarms say so, no job ends for it, and all goes on after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from bastion.emulators.kubernetes.address import KUBECONFIG_FILE
from bastion.emulators.kubernetes.apiserver.faults import Fault, forbidden, unauthorized
from bastion.emulators.kubernetes.apiserver.server import ApiServer
from tests.support.cluster_bastion import ClusterBastion, ClusterJob, causes, cluster_bastion
from tests.support.waiting import until

pytest.importorskip("kubernetes")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

STALE_SECONDS = 2.5
Trouble = Callable[[ClusterBastion, Path], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def bastion(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBastion]:
    folder = tmp_path_factory.mktemp("cluster")
    with cluster_bastion(folder, "v4-8=2", stale_seconds=STALE_SECONDS) as bastion:
        yield bastion


@pytest.fixture(scope="module")
def steady(bastion: ClusterBastion, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterJob]:
    """A job that runs through all of it."""
    go = tmp_path_factory.mktemp("go") / "go"
    job = bastion.job("steady", f"echo up; until [ -e {go} ]; do sleep 0.1; done; echo done")
    job.await_line("up")
    yield job
    go.touch()
    result = job.ended()
    assert (result["outcome"], causes(result)) == ("succeeded", ["succeeded"])
    (run,) = job.runs()
    assert job.output(run) == ["up", "done"]


@contextmanager
def refusing(bastion: ClusterBastion, words: str, fault: Fault) -> Iterator[None]:
    """Requests with these words are refused."""
    server = bastion.cluster.server
    assert server is not None

    def plan(method: str, path: str) -> Fault | None:
        return fault if words in f"{method} {path}" and "labelSelector=bastion-managed" in path else None

    server.faults.plan(plan)
    server.cut_watches()
    yield
    server.faults.plan(None)


@contextmanager
def kubeconfig_gone(bastion: ClusterBastion, folder: Path) -> Iterator[None]:
    bastion.write_settings(kubeconfig=str(folder / "gone"))
    yield
    bastion.write_settings()


@contextmanager
def another_cluster(bastion: ClusterBastion, folder: Path) -> Iterator[None]:
    """The settings lead to a cluster of another uid, where nothing of the bastion's is."""
    other = ApiServer(folder / "other")
    other.open()
    bastion.write_settings(kubeconfig=str(folder / "other" / KUBECONFIG_FILE))
    yield
    bastion.write_settings()
    other.close(grace_seconds=0)


def token_refused(bastion: ClusterBastion, _: Path) -> AbstractContextManager[None]:
    return refusing(bastion, "GET", unauthorized())


def lacks_a_verb(bastion: ClusterBastion, _: Path) -> AbstractContextManager[None]:
    return refusing(bastion, "/pods", forbidden("list", "pods"))


def no_jobset(bastion: ClusterBastion, _: Path) -> AbstractContextManager[None]:
    message = "the server could not find the requested resource"
    return refusing(bastion, "/jobsets", Fault(refuse=404, retry_after=0, message=message))


# Some of them in `make test`, all with $BASTION_TROUBLES=all.
TROUBLES: dict[Trouble, tuple[str, ...]] = {
    another_cluster: ("belongs to another cluster", "correct the address or the uid"),
    lacks_a_verb: ("system:serviceaccount:default:bastion", "list", "pods", "grant"),
    kubeconfig_gone: ("kubeconfig", "does not exist"),
    token_refused: ("does not accept the credentials", "renew the token or the kubeconfig"),
    no_jobset: ("does not serve", "install JobSet"),
}
CHOSEN = [*TROUBLES] if os.environ.get("BASTION_TROUBLES") == "all" else [lacks_a_verb]


@pytest.mark.parametrize("trouble", CHOSEN)
def test_trouble_with_a_cluster_is_an_alarm_and_ends_no_job(
    bastion: ClusterBastion, steady: ClusterJob, tmp_path: Path, trouble: Trouble
) -> None:
    words = TROUBLES[trouble]
    before = bastion.cluster.everything()
    name = f"waits-{trouble.__name__.replace('_', '-')}"
    with trouble(bastion, tmp_path):
        until(lambda: any(all(word in alarm for word in words) for alarm in bastion.status().alarms))
        waiting = bastion.job(name, "echo at last")
        until(waiting.entry)
        listed = bastion.cli("list")
        assert words[0] in listed.stderr + listed.stdout
        assert steady.result() is None
        assert waiting.result() is None
        assert bastion.cluster.everything() == before
    until(lambda: not bastion.status().alarms)
    assert waiting.ended()["outcome"] == "succeeded"
    assert causes(waiting.ended()) == ["succeeded"]
    until(lambda: bastion.cluster.everything() == before)
    assert steady.result() is None
