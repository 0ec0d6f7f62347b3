"""Submit a run: its documents, the finisher, then the members, and at last `submitted.json`.

Every step may be repeated. A client that is killed leaves a run that a second one goes on with; if none does, the
finisher ends it, because it waits for `submitted.json` only so long. Two clients at once submit the same jobs, as the
names are the same and a job is created once.

The one thing left to chance: a client that stops between its look at a job and the creation, for as long as the whole
run takes, creates that job anew. It then finds `submitted.json`, and cancels the job; `max_run` ends it in any case.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256

from bastion.benchmark import documents, layout
from bastion.benchmark.file import Benchmark
from bastion.benchmark.matrix import Member
from bastion.benchmark.members import Place, finisher_spec, job_of, matrix_of, member_spec, ordered, run_name
from bastion.client.concurrently import concurrently
from bastion.client.jobs.client import Client
from bastion.client.jobs.job_info import Stage
from bastion.core import limits
from bastion.core.errors import InvalidDocument, NotFound, PreconditionFailed, Refused
from bastion.core.model.job_spec import JobSpec

Progress = Callable[[int, int], None]
"""`(jobs submitted, jobs)`."""

_TRIES = 20
# Members that are submitted at once; more would only make the progress coarse.
_TOGETHER = 64


class Submission:
    """One call of `bastion benchmark run`.

    Args:
        bundle: Digest of the code, which is in the bucket already; None: no code.
        commit: Of the code's repository; for comparisons only, it makes no run another one.

    Attributes:
        matrix: Of the run, once it is known.
        continued: Whether an earlier call began it.
    """

    def __init__(
        self, client: Client, benchmark: Benchmark, place: Place, bundle: str | None, *, commit: str = ""
    ) -> None:
        self._client = client
        self._store = client.store
        self._benchmark = benchmark
        self._place = place
        self._bundle = bundle
        self._commit = commit
        self.continued = False
        self.matrix = self._begin()

    def submit(self, progress: Progress = lambda _done, _all: None) -> layout.Submitted:
        """Submit what is missing. Raises Refused if a job cannot be submitted, or the run has ended meanwhile."""
        matrix = self.matrix
        if self.continued:
            self._check_not_cancelled()
        found = documents.read_submitted(self._store, matrix.name, matrix.run)
        if found is not None:
            return found
        names = job_of(matrix)
        members = ordered(self._benchmark, matrix)
        if {(each.cell.slug, each.repeat) for each in members} != set(names):
            raise Refused(
                f"another version of bastion began the run {matrix.name}/{matrix.run}; cancel it (bastion benchmark "
                f"cancel {matrix.name}/{matrix.run}), and run the file again"
            )
        finisher = self._put(finisher_spec(self._benchmark, self._place, matrix, now=self._client.clock.now()))
        uids: list[str] = []
        # A member waits for one that is `parallel` places before it, so that many can be submitted together.
        together = min(self._benchmark.parallel or _TOGETHER, _TOGETHER)
        for first in range(0, len(members), together):
            now = self._client.clock.now()
            specs = [
                self._spec(members, index, names, uids, finisher=finisher, now=now)
                for index in range(first, min(first + together, len(members)))
            ]
            uids += self._put_all(specs)
            progress(len(uids), len(members))
        jobs = {names[each.cell.slug, each.repeat]: uid for each, uid in zip(members, uids, strict=True)}
        return self._close(layout.Submitted(jobs=jobs | {matrix.finisher: finisher}))

    def _spec(
        self,
        members: Sequence[Member],
        index: int,
        names: Mapping[tuple[str, int], str],
        uids: Sequence[str],
        *,
        finisher: str,
        now: float,
    ) -> JobSpec:
        """Make a member's spec. `uids`: of the members before it."""
        member = members[index]
        after = [{"job": self.matrix.finisher, "uid": finisher, "on": "succeeded"}]
        if member.after is not None:
            before = members[member.after]
            name = names[before.cell.slug, before.repeat]
            after.append({"job": name, "uid": uids[member.after], "on": "ended"})
        return member_spec(
            self._benchmark,
            self._place,
            member,
            run=self.matrix.run,
            name=names[member.cell.slug, member.repeat],
            bundle=self.matrix.bundle,
            after=after,
            now=now,
        )

    def _begin(self) -> layout.Matrix:
        """Find the run of this file and code that has not ended, or begin a new one."""
        benchmark, store = self._benchmark, self._store
        key = layout.newest(benchmark.name, self._digest())
        own = ""
        for _ in range(_TRIES):
            pointer, generation = self._newest(key)
            if pointer is not None and not self._ended(pointer):
                matrix = self._matrix(pointer)
                if matrix is not None:
                    self.continued = pointer != own
                    return matrix
            at = self._client.clock.now()
            run = run_name(benchmark.sha256, at)
            while run == pointer or store.head(layout.matrix(benchmark.name, run)) is not None:
                at += 1
                run = run_name(benchmark.sha256, at)
            with contextlib.suppress(PreconditionFailed):  # another client began one meanwhile
                store.put(key, layout.Newest(run=run).to_bytes(), generation=generation)
                own = run
        raise PreconditionFailed(f"{key} keeps changing: other clients begin runs of this file; try again")

    def _digest(self) -> str:
        """Of everything that makes a run the same one."""
        parts = (self._benchmark.sha256, self._bundle or "", self._place.user, self._place.project)
        return sha256("\n".join(parts).encode()).hexdigest()

    def _newest(self, key: str) -> tuple[str | None, int]:
        try:
            stored = self._store.get(key, max_bytes=limits.DOCUMENT_MAX_BYTES)
        except NotFound:
            return None, 0
        try:
            return layout.read(layout.Newest, stored.data, key).run, stored.meta.generation
        except InvalidDocument:  # of a foreigner: it is replaced
            return None, stored.meta.generation

    def _ended(self, run: str) -> bool:
        name = self._benchmark.name
        try:
            matrix = documents.read_matrix(self._store, name, run)
        except NotFound:  # a client was stopped, or someone deleted it
            submitted = documents.read_submitted(self._store, name, run) is not None
            return submitted and self._store.head(layout.matrix(name, run)) is None
        except InvalidDocument:  # nobody can go on with it
            return True
        info = self._client.look(matrix.finisher)
        if info is None:  # not submitted yet, or its result has expired
            return documents.read_submitted(self._store, name, run) is not None
        return info.stage is Stage.COMPLETED

    def _matrix(self, run: str) -> layout.Matrix | None:
        """Write the run's file and matrix, or read them; None if the name of the run is another one's."""
        benchmark = self._benchmark
        at = self._client.clock.now()
        made = matrix_of(benchmark, self._place, run=run, at=at, bundle=self._bundle, commit=self._commit)
        key = layout.matrix(benchmark.name, run)
        documents.create(self._store, layout.bench_file(benchmark.name, run), benchmark.data)
        found = layout.read(layout.Matrix, documents.create(self._store, key, made.to_bytes()), key)
        same = (found.file_sha256, found.bundle, found.user, found.project)
        return found if same == (made.file_sha256, made.bundle, made.user, made.project) else None

    def _put_all(self, specs: Sequence[JobSpec]) -> list[str]:
        """Submit specs of which none waits for another; return their jobs' uids. Raises the first one's error."""

        def put(spec: JobSpec) -> str | Refused:
            try:
                return self._put(spec)
            except Refused as error:
                return error

        uids = []
        calls = [partial(put, spec) for spec in specs]
        for answer in concurrently(calls, connections=self._client.pace.connections):
            if isinstance(answer, Exception):
                raise answer
            uids.append(answer)
        return uids

    def _put(self, spec: JobSpec) -> str:
        """Submit the spec unless that was done before; return the job's uid."""
        if self.continued:
            info = self._client.look(spec.name)
            if info is not None and info.problem:
                raise Refused(
                    f"the bastion refuses the job {spec.name}: {info.problem}; remove the cause, or cancel the run: "
                    f"bastion benchmark cancel {self.matrix.name}/{self.matrix.run}"
                )
            if info is not None:
                return info.uid
            if documents.read_submitted(self._store, self.matrix.name, self.matrix.run) is not None:
                raise self._gone()
        try:
            return self._client.submit(spec).uid
        except Refused:
            self.continued = True
            info = self._client.look(spec.name)
            if info is None:
                raise
            return info.uid

    def _close(self, submitted: layout.Submitted) -> layout.Submitted:
        key = layout.submitted(self.matrix.name, self.matrix.run)
        found = layout.read(layout.Submitted, documents.create(self._store, key, submitted.to_bytes()), key)
        for name, uid in submitted.jobs.items():
            if found.jobs.get(name) != uid:
                with contextlib.suppress(Refused):  # it has ended
                    self._client.cancel(name, by=self._place.user)
        info = self._client.look(self.matrix.finisher)
        if info is not None and info.stage is Stage.COMPLETED:
            raise self._gone()
        return found

    def _check_not_cancelled(self) -> None:
        """Raises Refused if the run is ending, because someone cancelled it."""
        info = self._client.look(self.matrix.finisher)
        if info is not None and info.uid and self._client.is_cancelled(info.name, info.uid):
            run = f"{self.matrix.name}/{self.matrix.run}"
            raise Refused(
                f"the run {run} was cancelled and is being torn down; run the file again when it has ended: bastion "
                f"benchmark status {run}"
            )

    def _gone(self) -> Refused:
        return Refused(
            f"the run {self.matrix.name}/{self.matrix.run} ended before this client had submitted all of its jobs; "
            "run the file again to start a new one"
        )
