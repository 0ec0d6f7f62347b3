"""Mode `inbox` with real programs: each has its own token or Unix user, and only its own inbox."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.adapters.system_clock import SystemClock
from bastion.cli.main import main
from bastion.client import Client
from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied
from bastion.core.model import job_spec
from bastion.core.model.identity import Identity, Inbox
from bastion.wiring.daemon import build_daemon
from bastion.wiring.local_home import LocalHome
from bastion.wiring.local_starter_quota import starter_quota
from bastion.wiring.roots import open_root, parse_root
from tests.support.inbox_stages import grant_inboxes
from tests.support.rights.programs import QUOTA_ROOT, Run, running
from tests.support.unix_users import UIDS, as_root, call_as, shared_folder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

QUOTA = starter_quota("alice").replace(b'"alice"', b'"alice", "bob"')


@pytest.fixture
def bastion(tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path, grant_inboxes) as run:
        quota = tmp_path / "quota.toml"
        quota.write_bytes(QUOTA)
        assert run("admin", "quota", "upload", str(quota), QUOTA_ROOT).returncode == 0
        enabled = run("admin", "admin", "inbox", "enable")
        assert enabled.returncode == 0, enabled.stderr
        soon(lambda: json.loads(run("user", "admin", "inbox", "status", "--output=json").stdout)["in_force"] == "inbox")
        yield run


def soon(done: Callable[[], bool]) -> None:
    for _ in range(100):
        if done():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def test_users_work_by_their_inboxes_and_cannot_touch_each_others_jobs(bastion: Run) -> None:
    launch = ("launch", "--project_id=default")
    done = bastion("user", *launch, "--name=hello", "--wait", "--", "echo", "hello from the VM")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hello from the VM" in done.stdout
    assert bastion("user", *launch, "--name=long", "--", "sleep", "300").returncode == 0
    soon(lambda: "running" in bastion("user", "list").stdout)
    taken = bastion("other user", *launch, "--name=long", "--", "true", login="bob")
    assert taken.returncode != 0
    assert "a job of alice named 'long' already exists" in taken.stderr
    forged = bastion("other user", *launch, "--name=forged", "--user_id=alice", "--", "true", login="bob")
    assert forged.returncode != 0
    assert "bob@example.com lacks the permission storage.objects.create" in forged.stderr
    asked = bastion("other user", "cancel", "long", login="bob")
    assert asked.returncode == 0, asked.stderr
    said = "requested the end of long, a job of alice; it ends if you are an admin: bastion history long"
    assert said in asked.stderr
    soon(lambda: "cancel by bob refused" in bastion("user", "history", "long").stdout)
    assert "running" in bastion("user", "list").stdout
    assert bastion("user", "cancel", "--wait", "long").returncode == 0
    refused = bastion("user", "admin", "inbox", "disable")
    assert refused.returncode != 0
    assert "lacks the permission storage.objects" in refused.stderr


@as_root
def test_in_a_folder_users_of_one_machine_work_by_their_inboxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))
    umask = os.umask(0o002)
    with shared_folder() as bucket:
        try:
            _work_in_a_folder(f"{bucket}/team-bastion", LocalHome(tmp_path / "home"))
        finally:
            os.umask(umask)


def _work_in_a_folder(url: str, home: LocalHome) -> None:
    root = parse_root(url)
    store = open_root(url)
    users = {name: Inbox(uid=UIDS[name]) for name in ("alice", "bob")}
    store.put(keys.PROJECT_QUOTAS, QUOTA, generation=0)
    store.put(keys.IDENTITY, Identity(users=users).to_bytes(), generation=0)
    assert main(["admin", "inbox", "enable", f"--root={url}"]) == 0
    daemon = build_daemon(
        root, home=home, owner="daemon", slices="none", bastion_host_jobs="as-daemon", notify=lambda _: None
    )
    spec = job_spec.new(
        name="job", bastion=root.bastion, command="sleep 300", user_id="alice", project_id="default", now=time.time()
    )

    def as_user(user: str, what: Callable[[Client], object]) -> None:
        client = Client(open_root(url), root, SystemClock(), user=user)
        call_as(UIDS[user], lambda: what(client) and None)

    def ticks_until(done: Callable[[Client], object]) -> None:
        client = Client(store, root, SystemClock())

        def one_more() -> bool:
            daemon.tick()
            return bool(done(client))

        soon(one_more)

    try:
        ticks_until(lambda client: client.takes_inboxes)
        as_user("alice", lambda client: client.submit(spec))
        ticks_until(lambda client: client.entries().get("job"))
        forged = f"{url}/{keys.user_state('job', 'alice')}"
        call_as(UIDS["bob"], lambda: Path(forged).write_bytes(b"CANCELLING") and None)
        as_user("bob", lambda client: client.cancel("job", by="alice"))
        ticks_until(lambda client: sum("refused" in line for line in client.history("job")) >= 2)
        lines = "".join(line for line in Client(store, root, SystemClock()).history("job") if "refused" in line)
        assert "cancel by bob refused" in lines
        assert f"the file belongs to the user {UIDS['bob']}" in lines
        with pytest.raises(AccessDenied):
            as_user("bob", lambda client: client.store.put(keys.state("other"), b"", generation=0))
        as_user("alice", lambda client: client.cancel("job", by="whoever"))
        ticks_until(lambda client: client.result("job"))
        result = Client(store, root, SystemClock()).result("job")
        assert result is not None
        assert (result.outcome, result.by, result.inbox) == ("cancelled", "alice", "alice")
        assert not Path(url, keys.active("job", "alice")).exists()
    finally:
        daemon.close()
