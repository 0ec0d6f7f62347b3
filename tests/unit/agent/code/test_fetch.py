"""Code that is refused: for a while in the bastion's own bucket, at once elsewhere."""

from __future__ import annotations

import io
import tarfile
import threading
from pathlib import Path
from random import Random

import pytest

from bastion.agent.backoff import Backoff
from bastion.agent.code.fetch import CodeDownload, CodeProblem
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import Order, OrderAction
from bastion.core.errors import AccessDenied

ROOT = "s3://bucket/team-bastion"
REFUSAL = "reading s3://bucket: the credentials have expired (ExpiredToken)"


def _code() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        entry = tarfile.TarInfo("train.py")
        entry.size = 4
        tar.addfile(entry, io.BytesIO(b"pass"))
    return packed.getvalue()


class Source:
    """Refuses the first reads."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.reads = 0
        self.waited_for = ""
        self.download: CodeDownload | None = None

    def __call__(self, _: str) -> bytes:
        self.reads += 1
        assert self.download is not None
        self.waited_for = self.download.waiting_for or self.waited_for
        if self.reads <= self.refusals:
            raise AccessDenied(REFUSAL)
        return _code()

    def fetch(self, folder: Path, url: str, *, refused_max_seconds: float) -> CodeDownload:
        done = threading.Event()
        order = Order(run="abcdefghij-1", action=OrderAction.RUN, command="x", code=url)
        self.download = CodeDownload(
            order,
            folder,
            self,
            root=ROOT,
            backoff=Backoff(Random(1), first_seconds=0.01, last_seconds=0.02),
            on_done=done.set,
            refused_max_seconds=refused_max_seconds,
        )
        self.download.start()
        assert done.wait(30.0)
        return self.download


def test_the_bastions_own_bucket_may_refuse_for_a_while(tmp_path: Path) -> None:
    source = Source(refusals=5)
    download = source.fetch(tmp_path / "work", f"{ROOT}/bundles/a.tar.gz", refused_max_seconds=600.0)
    assert (download.problem, source.reads, download.waiting_for) == (None, 6, "")
    assert source.waited_for == REFUSAL
    assert (tmp_path / "work" / "train.py").read_text() == "pass"


@pytest.mark.parametrize(
    ("url", "reads"), [(f"{ROOT}/bundles/a.tar.gz", 2), ("s3://other/code.tar.gz", 1), (f"{ROOT}-2/a.tar.gz", 1)]
)
def test_a_refusal_that_stays_or_of_another_bucket_is_the_jobs_failure(tmp_path: Path, url: str, reads: int) -> None:
    own = url.startswith(f"{ROOT}/")
    source = Source(refusals=1_000_000)
    problem = source.fetch(tmp_path / "work", url, refused_max_seconds=0.1 if own else 600.0).problem
    assert isinstance(problem, CodeProblem)
    assert (problem.error, str(problem)) == (host_errors.BUNDLE_MISSING, f"cannot read the job's code: {REFUSAL}")
    assert source.reads >= reads if own else source.reads == reads
