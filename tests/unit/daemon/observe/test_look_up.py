"""Gangs that no listing has are looked up side by side: a place that hangs costs a tick one wait, not one per job."""

from __future__ import annotations

import threading

from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.gangs import GangRef, GangStatus
from bastion.daemon.observe.gangs import look_up
from bastion.daemon.thread_pool import ThreadPool

SECONDS = 10.0


def test_look_ups_of_several_places_wait_together_and_fail_apart() -> None:
    both_ask = threading.Barrier(2)

    def get(ref: GangRef) -> GangStatus | None:
        both_ask.wait(SECONDS)
        if ref.zone == "k8s:east":
            raise ProvisionerUnavailable("it hangs")
        return None

    threads = ThreadPool(2)
    try:
        found = look_up(get, [GangRef(name="b-a-1", zone="k8s:east"), GangRef(name="b-b-1", zone="k8s:west")], threads)
    finally:
        threads.dismiss()
    assert found["b-b-1"] is None
    assert str(found["b-a-1"]) == "it hangs"
