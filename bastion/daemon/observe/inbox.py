"""The source of specs and requests in mode `inbox`: one listing of `inbox/`, and whose objects count.

It fills the same caches, by job, as the listings of `jobs/active/` and `jobs/user_states/` do in mode `open`. What lies
in those two folders is then the daemon's own copies, or what others wrote there by mistake or to deceive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Mapping, Sequence

from bastion.core.bucket import keys
from bastion.core.bucket.keys import InboxKey
from bastion.core.errors import InvalidDocument
from bastion.core.model import identity
from bastion.core.model.audit import Proof
from bastion.core.model.cancel_request import CancelRequest
from bastion.core.model.identity import Identity
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.lifecycle import Status
from bastion.core.model.refusal import Refusal
from bastion.core.model.world import Explained, Outside, OutsideObject
from bastion.core.reconcile.claims import Claims, resolve
from bastion.daemon.observe.copies import Copies
from bastion.daemon.observe.object_cache import ObjectCache
from bastion.ports import InboxProof, ObjectMeta
from quota import Policy

_DIGESTS_MORE = 100


class Inbox:
    """Objects by job and user.

    Attributes:
        identity: Its mode says whether this is the source.
        unprepared: Why users cannot write to their inboxes; otherwise empty.
    """

    prefix = keys.INBOX

    def __init__(self, proof: InboxProof) -> None:
        self._proof = proof
        self._specs: dict[str, dict[str, ObjectMeta]] = {}
        self._requests: dict[str, dict[str, ObjectMeta]] = {}
        self._job_requests: list[ObjectMeta] = []
        self._parsed: dict[str, InboxKey | None] = {}
        self._claims = Claims()
        self._digests: dict[
            str, tuple[int, str]
        ] = {}  # by job: the generation that was read, and its sha256; in both modes
        self._explained: dict[tuple[str, str], Explained] = {}
        self.identity = identity.OPEN
        self.unprepared = ""

    def use(self, found: Identity) -> bool:
        """Take the identities in force; return whether the mode has changed."""
        changed = found.inbox is not self.identity.inbox
        if found != self.identity:
            self.unprepared = self._proof.prepare(found)
        self.identity = found
        if changed:
            self._specs, self._requests, self._claims, self._digests, self._explained = {}, {}, Claims(), {}, {}
            self._job_requests = []
        return changed

    @property
    def on(self) -> bool:
        return self.identity.inbox

    @property
    def kind_of_proof(self) -> Proof | None:
        return self._proof.kind if self.on else None

    def take(self, found: Sequence[ObjectMeta]) -> None:
        self._specs, self._requests, self._job_requests = {}, {}, []
        before, self._parsed = self._parsed, {}
        for meta in found:  # the same ones, tick after tick
            key = before[meta.key] if meta.key in before else InboxKey.parse(meta.key)
            self._parsed[meta.key] = key
            if key is not None:
                (self._requests if key.request else self._specs).setdefault(key.job, {})[key.user] = meta
            elif "/requests/" in meta.key:
                self._job_requests.append(meta)

    @property
    def job_requests(self) -> Sequence[ObjectMeta]:
        """Requests about jobs, and what lies beside them."""
        return self._job_requests

    def forget_job_request(self, key: str) -> None:
        self._job_requests = [meta for meta in self._job_requests if meta.key != key]

    @property
    def names(self) -> Collection[str]:
        return self._specs.keys()

    def keys_of(self, job: str) -> list[str]:
        """The keys of all specs of that name."""
        return [meta.key for meta in self._specs.get(job, {}).values()]

    def problem(self, meta: ObjectMeta) -> str:
        """Why the object may not be of the user whose inbox it is in; empty if the bucket proves that it is."""
        user = keys.inbox_user(meta.key)
        if not user:  # accepted before there were inboxes
            return ""
        return self._proof.problem(user, self.identity.of(user), meta)

    # -- whose objects count ------------------------------------------------------------------------------------

    def resolve(
        self,
        specs: ObjectCache[JobSpec],
        user_requests: ObjectCache[CancelRequest],
        states: ObjectCache[JobRecord | Status],
        invalid: ObjectCache[Refusal],
        policy: Policy | None,
        waiting: Container[str],
    ) -> None:
        """Fill the caches of specs and requests, after the states and explanations were read."""
        self._explained = {
            (each.name, each.owner): Explained(
                name=each.name,
                owner=each.owner,
                request=each.request,
                about=each.generation,
                generation=invalid.generation(name),
                problem=each.problem,
            )
            for name, each in invalid.values.items()
        }
        claims = resolve(
            self._specs,
            self._requests,
            {name: value for name, value in states.values.items() if isinstance(value, JobRecord)},
            frozen=states.problems.keys() | states.unknown.keys(),
            waiting=waiting,
            refused={who: each.about for who, each in self._explained.items() if not each.request},
            problem=self.problem,
            policy=policy,
        )
        _fill(specs, claims.specs)
        _fill(user_requests, claims.requests)
        self._claims = claims
        self._digests = {name: digest for name, digest in self._digests.items() if name in claims.specs}

    def all_requests(self) -> Mapping[str, ObjectMeta]:
        """Every request by `<job>~<user>`, for the sweep."""
        return {f"{job}~{user}": meta for job, by_user in self._requests.items() for user, meta in by_user.items()}

    def refused_requests(self, job: str) -> Sequence[ObjectMeta]:
        return self._claims.refused_requests.get(job, ())

    def explained_to(self, job: str, user: str) -> Explained | None:
        return self._explained.get((job, user))

    # -- what was read ------------------------------------------------------------------------------------------

    def note_read(self, meta: ObjectMeta, name: str, data: bytes) -> None:
        """Keep the digest of what a spec was parsed from. Raises InvalidDocument if it may not be its user's."""
        problem = self.problem(meta)
        if problem:
            raise InvalidDocument(problem)
        self._digests[name] = meta.generation, hashlib.sha256(data).hexdigest()

    def forget_digests(self, present: Collection[str]) -> None:
        """Keep those of present specs only, once most are not."""
        if len(self._digests) > 2 * len(present) + _DIGESTS_MORE:
            self._digests = {name: digest for name, digest in self._digests.items() if name in present}

    def digest(self, name: str, generation: int) -> str:
        """The sha256 of the bytes of that generation; empty if it was not read."""
        known = self._digests.get(name)
        return known[1] if known is not None and known[0] == generation else ""

    def check(self, user: str, spec: JobSpec) -> None:
        """Raise InvalidDocument for a spec that says it is another's."""
        project = self.identity.of(user).project
        if project and spec.project_id != project:
            raise InvalidDocument(
                f"the inbox {user} is for jobs of the project {project}, but metadata.project_id is "
                f"{spec.project_id[:80]!r}; correct it"
            )
        if not project and spec.user_id != user:
            raise InvalidDocument(
                f"metadata.user_id is {spec.user_id[:80]!r}, but the spec is in the inbox of {user}; make them equal"
            )

    # -- what no job comes from -----------------------------------------------------------------------------------

    def outside(self, own: Collection[tuple[str, str]], copies: Copies) -> Outside:
        """Everything in the inboxes and beside them that is no job's. `own`: jobs and users of the present specs."""
        explained = tuple(
            each
            for who, each in self._explained.items()
            if who not in own or each.request  # an explanation of a present spec is its job's
        )
        objects: list[OutsideObject] = [*self._claims.outside, *copies.foreign]
        return Outside(
            explained=explained,
            objects=tuple(objects),
            damaged_copies=copies.damaged,
            copies_listed=copies.checked,
        )


def _fill(cache: ObjectCache[JobSpec] | ObjectCache[CancelRequest], chosen: Mapping[str, ObjectMeta]) -> None:
    """Make these the listed objects; another user's object of the same job is another object."""
    for name, before in cache.listed.items():
        now = chosen.get(name)
        if now is None or now.key != before.key:
            cache.forget(name)
    cache.listed = dict(chosen)
