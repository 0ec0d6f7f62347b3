"""What each part of the reconciler knows of one job in one tick, and how it changes the job's record."""

from __future__ import annotations

from bastion.core.model.gangs import GangState
from bastion.core.model.job_record import JobRecord
from bastion.core.model.world import JobView, World
from bastion.core.reconcile.effects import DeleteGang, Effect
from bastion.core.reconcile.runs import close_gate


class JobStep:
    """One job in this tick.

    Attributes:
        changed: Whether the record must be written.
        effects: What follows the record, in this order.
    """

    def __init__(self, view: JobView, world: World, now: float) -> None:
        self.view = view
        self.settings = world.settings
        self.world = world
        self.policy = world.policy
        self.entropy = world.entropy
        self.now = now
        # After the next write of the state, a start in doubt can no longer land.
        self.changed = view.doubt is not None
        self.effects: list[Effect] = []

    def _evolve(self, record: JobRecord, text: str = "", **changes: object) -> JobRecord:
        self.changed = True
        return record.evolve(at=self.now, text=text, **changes)

    def _orphan_gangs(self) -> bool:
        """Close the gates of orphaned gangs and delete them; True while there are any."""
        if not self.effects:  # once a tick, however often the record changes
            for orphan in self.view.orphan_gangs:
                if orphan.status.state is not GangState.DELETING:
                    status = orphan.status
                    self.effects.append(close_gate(self.settings, status.run, status.token, "its attempt has ended"))
                    self.effects.append(DeleteGang(ref=status.ref, on_bastion=orphan.on_bastion))
        return bool(self.view.orphan_gangs)
