"""`docs/how-to/run-on-gcp.md`: its commands exist with the flags they are given, and what it grants is what is needed.

The grants are read from the page's own `gcloud` lines and carried out: a store refuses whatever an identity was not
granted, and the real daemon, client and worker parts work on it. Where the service might check permissions before the
precondition, the store does, which is the harder case.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import bastion
from bastion.adapters.forwarding_store import ForwardingStore
from bastion.agent.logs.segments import SegmentStore
from bastion.cli import parsing
from bastion.client.jobs.client import Client
from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.errors import AccessDenied, NotFound, PreconditionFailed
from bastion.core.model import job_spec
from bastion.core.run_keys import RunKey
from bastion.ports import ObjectMeta, ObjectStore
from bastion.testing.cluster import BASTION, QUOTA, ROOT, Cluster
from bastion.testing.memory_store import MemoryStore
from bastion.testing.scripted_hosts import runs_for
from bastion.wiring.roots import Root
from tests.support import page_commands
from tests.support.job_specs import new_spec
from tests.support.store_calls import T

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs" / "how-to" / "run-on-gcp.md").read_text("utf-8")

# Of every gcloud command on the page the flags that it may be given, as gcloud 528 has them.
PROJECT_AND_ZONE = frozenset({"--project", "--zone"})
BINDING = frozenset({"--member", "--role", "--condition"})
GCLOUD = {
    "auth application-default login": {"--disable-quota-project"},
    "compute instances add-metadata": PROJECT_AND_ZONE | {"--metadata", "--metadata-from-file"},
    "compute instances create": PROJECT_AND_ZONE
    | {"--machine-type", "--image-family", "--image-project", "--boot-disk-size", "--boot-disk-type"}
    | {"--shielded-secure-boot", "--service-account", "--scopes", "--metadata", "--metadata-from-file"},
    "compute instances delete": PROJECT_AND_ZONE,
    "compute instances get-serial-port-output": PROJECT_AND_ZONE,
    "compute tpus queued-resources list": PROJECT_AND_ZONE,
    "compute tpus tpu-vm list": PROJECT_AND_ZONE | {"--filter"},
    "compute ssh": PROJECT_AND_ZONE | {"--tunnel-through-iap", "--command"},
    "iam roles create": {"--project", "--file"},
    "iam service-accounts add-iam-policy-binding": BINDING | {"--project"},
    "iam service-accounts create": {"--project", "--display-name"},
    "iam service-accounts delete": {"--project"},
    "projects add-iam-policy-binding": BINDING,
    "services enable": {"--project"},
    "storage buckets create": {"--project", "--location", "--default-storage-class", "--uniform-bucket-level-access"}
    | {"--public-access-prevention", "--soft-delete-duration"},
    "storage buckets remove-iam-policy-binding": BINDING,
    "storage buckets update": {"--lifecycle-file"},
    "storage cat": set(),
    "storage cp": {"--if-generation-match", "--impersonate-service-account"},
    "storage managed-folders add-iam-policy-binding": BINDING,
    "storage managed-folders create": set(),
    "storage rm": {"--recursive"},
}


def commands(program: str) -> list[list[str]]:
    return page_commands.commands(PAGE, program)


def gcloud_name(words: list[str]) -> str:
    return page_commands.gcloud_name(words, GCLOUD)


def test_every_gcloud_command_is_given_flags_that_it_has() -> None:
    lines = commands("gcloud")
    assert len(lines) > 40
    for words in lines:
        assert page_commands.flags_of(words) <= set(GCLOUD[gcloud_name(words)]), shlex.join(words)
    assert {gcloud_name(words) for words in lines} == set(GCLOUD)


def test_the_flags_are_those_of_the_installed_gcloud() -> None:
    tree = page_commands.gcloud_completions()
    if tree is None:
        pytest.skip("gcloud is not installed here")
    for name, flags in GCLOUD.items():
        assert set(flags) <= page_commands.flags_that_gcloud_has(tree, name), name


def test_every_bastion_command_is_given_flags_and_operands_that_it_takes() -> None:
    lines = commands("bastion")
    assert {words[0] for words in lines} >= {"launch", "list", "logs", "cancel", "quota", "config"}
    for words in lines:
        entry, count = parsing.find(words)
        parsing.parse(entry.name, entry.load(), words[count:])


def test_the_wheel_is_of_this_version() -> None:
    assert f"export WHEEL=bastion-{bastion.__version__}-py3-none-any.whl" in PAGE


def test_every_file_of_the_deploy_folder_is_mentioned() -> None:
    """Those of `terraform/` and the build are create-the-environment.md's, and two are other pages'."""
    folder = REPOSITORY / "deploy"
    files = [path for path in folder.rglob("*") if path.is_file() and folder / "terraform" not in path.parents]
    files.remove(folder / "cloudbuild.yaml")
    files.remove(folder / "lifecycle-s3.json")
    files.remove(folder / "roles" / "admin.yaml")
    assert [path.name for path in files if str(path.relative_to(REPOSITORY)) not in PAGE] == []


# -- what is granted --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Permissions on what lies under a folder, relative to the ROOT.

    Conditions narrow it: `within` is what one extracts, `named` the one object that one allows.
    """

    folder: str
    permissions: frozenset[str]
    within: str = ""
    named: str = ""

    def covers(self, permission: str, name: str) -> bool:
        if permission not in self.permissions or not name.startswith(self.folder) or self.named not in ("", name):
            return False
        before, _, rest = self.within.partition("{")
        pattern = re.escape(before) + ".+" + re.escape(rest.partition("}")[2])
        return not self.within or re.search(pattern, "/" + name) is not None


def flag(words: list[str], name: str) -> str:
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")


def permissions_of_roles() -> dict[str, frozenset[str]]:
    found = {}
    for words in commands("gcloud"):
        if words[:3] == ["iam", "roles", "create"]:
            text = (REPOSITORY / flag(words, "--file")).read_text("utf-8")
            found[words[3]] = frozenset(re.findall(r"^- (\S+)$", text, re.MULTILINE))
    return found


def grants(member: str, bucket: str) -> list[Grant]:
    """What the page grants to a member in one of the two buckets."""
    roles = permissions_of_roles()
    start = f"gs://{bucket}/alice-bastion/"
    found = []
    for words in commands("gcloud"):
        if words[:3] != ["storage", "managed-folders", "add-iam-policy-binding"]:
            continue
        if member in flag(words, "--member") and words[3].startswith(start):
            condition = flag(words, "--condition")
            within = re.search(r'extract\("(.*)"\) != ""', condition)
            named = re.search(r'endsWith\("/alice-bastion/(.*)"\)', condition)
            assert within or named or condition in ("", "None"), condition
            found.append(
                Grant(
                    folder=words[3].removeprefix(start),
                    permissions=roles[flag(words, "--role").rpartition("/")[2]],
                    within=within[1] if within else "",
                    named=named[1] if named else "",
                )
            )
    return found


# The permissions that a call needs on the objects it names.
_VERBS = {
    "get": ("get", "list"),
    "head": ("get", "list"),
    "list": ("list",),
    "put": ("create",),
    "append": ("create", "get", "delete"),
    "delete": ("delete", "get", "list"),
}


class GuardedStore(ForwardingStore):
    """A bucket as one identity has it: what it was not granted is refused, as the adapter's requests would be.

    `parts` is where appends put their bytes first.
    """

    def __init__(self, store: ObjectStore, granted: list[Grant], *, parts: str = "append-parts/") -> None:
        super().__init__(store)
        self._granted = granted
        self._parts = parts

    def _need(self, name: str, *verbs: str) -> None:
        for verb in verbs:
            if not any(grant.covers(f"storage.objects.{verb}", name) for grant in self._granted):
                raise AccessDenied(f"the permission storage.objects.{verb} on {name or 'the ROOT'} is not granted")

    def _call(self, method: str, key: str, call: Callable[[], T]) -> T:
        self._need(key, *_VERBS[method])
        if method == "put" and self._store.head(key) is not None:
            self._need(key, "delete")
        if method == "append":
            self._need(self._parts, *_VERBS[method])
        return call()

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        return super().append(key, data, generation=generation) if generation else self.put(key, data, generation=0)


USERS, DAEMON, WORKERS, ADMINS = "tpu-users@", "bastion-daemon@", "bastion-worker@", "tpu-admins@"
TEAM, PRIVATE = "my-team-bastion", "my-team-bastion-admin"


def test_a_daemon_its_hosts_and_a_user_do_their_work_with_what_is_granted_and_no_more() -> None:
    cluster = Cluster(quota=None)
    bucket = cluster.store
    private = MemoryStore(now=cluster.clock.now)
    admin = GuardedStore(private, grants(ADMINS, PRIVATE))
    admin.put(keys.PROJECT_QUOTAS, QUOTA, generation=0)
    cluster.daemon = cluster.new_daemon(
        GuardedStore(bucket, grants(DAEMON, TEAM)), GuardedStore(private, grants(DAEMON, PRIVATE))
    )
    cluster.hosts.store = GuardedStore(bucket, grants(WORKERS, TEAM))
    user = Client(
        GuardedStore(bucket, grants(USERS, TEAM)), Root(bucket=ROOT.rpartition("/")[0], bastion=BASTION), cluster.clock
    )
    cluster.hosts.scripts["job-1"] = runs_for(5)

    def submit(name: str, version: int | None = None) -> None:
        spec = new_spec(
            name,
            bastion=BASTION,
            command="run",
            user_id="alice",
            project_id="a",
            now=cluster.clock.now(),
            instance_type="tpu-v4-32",
        )
        document = spec.document
        document["metadata"]["version"] = version
        user.submit(job_spec.from_document(document, name=name))

    submit("job-1")
    cluster.run_until(lambda: cluster.result("job-1"))
    assert user.require("job-1").result.outcome == "succeeded"
    assert [line.split()[2] for line in user.history("job-1")][-1] == "COMPLETED"
    submit("job-2")
    cluster.run_until(lambda: cluster.hosts.live("job-2"))
    submit("job-2", version=1)
    assert [name for name in user.entries() if name == "job-2"]
    user.cancel("job-2", by="alice")
    cluster.run_until(lambda: cluster.result("job-2"))
    assert cluster.daemon.tick().problems == []


def test_a_host_writes_its_logs_with_what_is_granted() -> None:
    bucket = MemoryStore()
    segments = SegmentStore(
        GuardedStore(bucket, grants(WORKERS, TEAM)), job="job", run="abcdefghij-1", host=0, run_key=KEY
    )
    segments.write(b"one\n")
    segments.write(b"two\n")
    assert len(list(bucket.list(keys.worker_logs("job")))) == 2


def test_a_host_that_finds_its_gate_closed_stays_out() -> None:
    bucket = MemoryStore()
    bucket.put(keys.claim("abcdefghij-1", "tag"), b"{}", generation=0)
    host = GuardedStore(bucket, grants(WORKERS, TEAM))
    with pytest.raises((PreconditionFailed, AccessDenied)):
        host.put(keys.claim("abcdefghij-1", "tag"), b"mine", generation=0)
    with pytest.raises(AccessDenied):
        host.delete(keys.claim("abcdefghij-1", "tag"), generation=1)


RUN = str(Run("abcdefghij", 1))
KEY = RunKey(bytes(32))
# One key of each kind, and which of users, daemon and workers may create it and overwrite it.
KINDS = [
    (keys.active("job"), "users daemon", "users daemon"),
    (keys.user_state("job"), "users daemon", "users daemon"),
    (keys.state("job"), "daemon", "daemon"),
    (keys.complete("job"), "daemon", "daemon"),
    (keys.claim(RUN, "tag"), "daemon workers", "daemon"),
    (keys.invalid("job"), "daemon", "daemon"),
    (keys.order(RUN), "daemon", "daemon"),
    (keys.report(RUN, 0), "daemon workers", "daemon workers"),
    (keys.beat(RUN, 0), "daemon workers", "daemon workers"),
    (keys.log("job"), "daemon", "daemon"),
    (keys.log_segment("job", RUN, 0, 1), "daemon workers", "daemon"),
    ("outputs/job/x", "daemon workers", "daemon workers"),
    ("benchmarks/x/20260102T030405Z-0123abcd/matrix.json", "daemon users", "daemon users"),
    ("bundles/x.tar.gz", "daemon users", "daemon"),
    ("agents/x/y", "daemon", "daemon"),
    (keys.job_history("job"), "daemon", "daemon"),
    (keys.STATUS, "daemon", "daemon"),
    (keys.LEASE, "daemon", "daemon"),
    (keys.RUNTIME_OPTIONS, "daemon", "daemon"),
    (keys.PROJECT_QUOTAS, "daemon", "daemon"),
]


@pytest.mark.parametrize(("key", "creators", "owners"), KINDS, ids=[key for key, _, _ in KINDS])
def test_who_may_write_what(key: str, creators: str, owners: str) -> None:
    for name, member in {"users": USERS, "daemon": DAEMON, "workers": WORKERS}.items():
        bucket = MemoryStore()
        store = GuardedStore(bucket, grants(member, TEAM))
        assert may(lambda: store.put(key, b"1", generation=0)) == (name in creators.split()), name  # noqa: B023
        present = bucket.head(key) or bucket.put(key, b"1", generation=0)
        generation = present.generation
        assert may(lambda: store.put(key, b"2", generation=generation)) == (name in owners.split()), name  # noqa: B023


def may(write: Callable[[], object]) -> bool:
    try:
        write()
    except AccessDenied:
        return False
    return True


def test_users_read_everything_of_the_bastion_and_nobody_but_administrators_writes_the_private_bucket() -> None:
    reader = GuardedStore(MemoryStore(), grants(USERS, TEAM))
    assert list(reader.list("")) == []
    with pytest.raises(NotFound):
        reader.get(keys.LEASE)
    assert grants(USERS, PRIVATE) == []
    assert grants(WORKERS, PRIVATE) == []
    daemon = GuardedStore(MemoryStore(), grants(DAEMON, PRIVATE))
    assert list(daemon.list(keys.PROJECT_QUOTAS)) == []
    with pytest.raises(AccessDenied):
        daemon.put(keys.PROJECT_QUOTAS, b"", generation=0)


def test_workers_see_whether_the_daemon_lives() -> None:
    bucket = MemoryStore()
    bucket.put(keys.LEASE, b"", generation=0)
    assert GuardedStore(bucket, grants(WORKERS, TEAM)).head(keys.LEASE) is not None


def test_workers_read_no_specs_and_no_states() -> None:
    worker = GuardedStore(MemoryStore(), grants(WORKERS, TEAM))
    for key in (keys.active("job"), keys.state("job"), keys.STATUS, keys.PROJECT_QUOTAS):
        with pytest.raises(AccessDenied):
            worker.get(key)


def test_the_provisioner_is_granted_exactly_the_calls_that_it_makes() -> None:
    adapter = sorted((REPOSITORY / "bastion" / "adapters" / "tpu").glob("*.py"))
    source = "".join(path.read_text("utf-8") for path in adapter)
    calls = set(re.findall(r"self\._client\.(\w+)\(", source))
    assert len(calls) > 8
    needed = {f"tpu.{call.partition('_')[2].replace('_', '').rstrip('s')}s.{call.partition('_')[0]}" for call in calls}
    assert permissions_of_roles()["bastionProvisioner"] == needed
