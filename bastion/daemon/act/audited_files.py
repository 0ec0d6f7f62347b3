"""The files of administrators in the audit trail: which generation came into force. Nobody knows who wrote it."""

from __future__ import annotations

import hashlib

from bastion.core.bucket import keys
from bastion.core.model.audit import Came, Proof, Request
from bastion.core.model.identity import Identity
from bastion.core.plurals import count
from bastion.core.status.document import AuditEntry, StatusDocument
from bastion.daemon.act.audit_trail import AuditTrail
from bastion.daemon.observe.last_good import Loaded
from bastion.daemon.observe.policy_source import PolicyStatus


class AuditedFiles:
    """Notes each generation once. The published status says which ones the predecessor noted."""

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail
        self._quota = self._settings = self._identity = 0

    def take_over(self, published: StatusDocument) -> None:
        before = published.daemon.audit
        self._quota = published.quota.generation if published.quota.in_force else 0
        self._settings, self._identity = before.settings, before.identity
        if before.waiting:
            self._trail.note_daemon(
                Request.GAP,
                f"gap#{published.daemon.epoch}",
                f"the daemon before this one could not write the audit trail: up to {count(before.waiting, 'line')} "
                "may be missing",
                outcome=Came.LOST,
            )

    def note(self, quota: PolicyStatus, settings: Loaded, identities: Loaded, identity: Identity) -> None:
        """Note what has come into force since the last tick."""
        if quota.generation not in (0, self._quota):
            self._quota = quota.generation
            loaded = Loaded(quota.generation, hashlib.sha256(quota.data).hexdigest())
            self._note(Request.QUOTA, keys.PROJECT_QUOTAS, loaded, "")
        if settings.generation not in (0, self._settings):
            self._settings = settings.generation
            self._note(Request.SETTINGS, keys.DAEMON_SETTINGS, settings, "")
        if identities.generation not in (0, self._identity):
            self._identity = identities.generation
            text = f": mode {identity.mode.value}, inboxes of {count(len(identity.users), 'name')}"
            self._note(Request.IDENTITY, keys.IDENTITY, identities, text)

    def _note(self, request: Request, key: str, loaded: Loaded, text: str) -> None:
        self._trail.note_daemon(
            request,
            f"{request.value}#{loaded.generation}",
            f"{key} is in force{text}; whoever wrote generation {loaded.generation}",
            proof=Proof.GENERATION,
            generation=loaded.generation,
            sha256=loaded.sha256,
        )

    def entry(self) -> AuditEntry:
        return AuditEntry(settings=self._settings, identity=self._identity, waiting=self._trail.waiting)
