"""How long events are kept."""

from __future__ import annotations

import datetime
from pathlib import Path

from bastion.emulators.kubernetes.apiserver import first_objects, retention
from bastion.emulators.kubernetes.apiserver.resources import EVENTS
from bastion.emulators.kubernetes.apiserver.routes import Route
from bastion.emulators.kubernetes.apiserver.store import Store
from bastion.emulators.kubernetes.apiserver.writing import create


def test_events_go_after_an_hour_without_a_write(tmp_path: Path) -> None:
    store = Store(tmp_path / "objects.sqlite")
    first_objects.ensure(store)
    now = datetime.datetime.now(datetime.timezone.utc)
    again = (now + datetime.timedelta(minutes=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for name, fields in (("once", {}), ("again", {"lastTimestamp": again})):
        event = {"kind": "Event", "apiVersion": "v1", "metadata": {"name": name}, "involvedObject": {}, **fields}
        create(store, Route(resource=EVENTS, namespace="default"), event, dry_run=False)
    for minutes, left in ((59, ["again", "once"]), (62, ["again"]), (92, [])):
        retention.sweep(store, now + datetime.timedelta(minutes=minutes))
        assert [stored.name for stored in store.items(EVENTS)] == left
    store.close()
