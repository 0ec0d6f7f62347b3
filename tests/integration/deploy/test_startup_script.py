"""`deploy/`: the startup script, carried out below a folder against a metadata server and a storage server on this
machine; the unit file; the lifecycle rules.

The wheel that is installed is a small one made here: what the real one needs is for `test_dockerfile.py` to find out.
"""

from __future__ import annotations

import configparser
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from bastion import job_user
from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.wiring import roots
from bastion.wiring.host_jobs import POOL

REPOSITORY = Path(__file__).resolve().parents[3]
DEPLOY = REPOSITORY / "deploy"
SCRIPT = DEPLOY / "startup.sh"
UNIT = DEPLOY / "bastion.service"
FIREWALL = DEPLOY / "close-metadata.sh"


def make_package(folder: Path, name: str, word: str, *, source: str = "", **files: str) -> Path:
    """A wheel of a project whose program prints a word and its arguments."""
    path = folder / f"{name}-0.1.0-py3-none-any.whl"
    info = f"{name}-0.1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f"import sys\n{source}def main():\n    print({word!r}, *sys.argv[1:])\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name} = {name}:main\n")
        for file, text in files.items():
            wheel.writestr(f"{name}/requirements/{file}.lock", text)
        wheel.writestr(f"{info}/RECORD", "")
    return path


def locked(wheel: Path) -> str:
    """The lock file for one wheel."""
    return f"{wheel.name.split('-')[0]}==0.1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def make_wheel(folder: Path, word: str) -> Path:
    """A wheel of Bastion, whose lock files name packages that lie beside it."""
    base = locked(make_package(folder, "needed", "needed"))
    kubernetes = locked(make_package(folder, "client", "client"))
    return make_package(folder, "bastion", word, base=base, kubernetes=kubernetes)


@dataclass(slots=True)
class Cloud:
    """What the VM is told and may fetch, and what it has asked for."""

    attributes: dict[str, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    address: str = ""

    def answer(self, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        self.asked.append(path)
        instance = "/computeMetadata/v1/instance/"
        if path.startswith(instance):
            if headers.get("metadata-flavor") != "Google":
                return 403, b"Missing Metadata-Flavor:Google header."
            name = path.removeprefix(instance)
            if name == "service-accounts/default/token":
                return 200, json.dumps({"access_token": "ya29.token", "expires_in": 3599}).encode()
            value = self.attributes.get(name.removeprefix("attributes/"))
            return (404, b"not found") if value is None else (200, value.encode())
        if headers.get("authorization") != "Bearer ya29.token":
            return 401, b"who are you?"
        bucket, _, name = path.removeprefix("/storage/v1/b/").partition("/o/")
        data = self.objects.get(f"gs://{bucket}/{unquote(name)}")
        return (404, b"No such object") if data is None else (200, data)

    def offer(self, wheel: Path, url: str = "gs://admin/alice-bastion/releases/bastion-0.1.0-py3-none-any.whl") -> str:
        """Lays a wheel into the bucket and names it in the metadata; returns its SHA-256."""
        data = wheel.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        self.objects[url] = data
        self.attributes |= {"bastion-package": url, "bastion-package-sha256": digest}
        return digest


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    here = Cloud(
        attributes={
            "bastion-root": "gs://team/alice-bastion",
            "bastion-quota-root": "gs://admin/alice-bastion",
            "bastion-unit": UNIT.read_text("utf-8"),
            "bastion-firewall": FIREWALL.read_text("utf-8"),
        }
    )

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            status, body = here.answer(parts.path, {name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        here.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield here
        server.shutdown()
        thread.join()


def start(cloud: Cloud, prefix: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return subprocess.run(
        ["bash", str(SCRIPT), f"--prefix={prefix}"],
        env=kept
        | {"GCE_METADATA_HOST": cloud.address, "STORAGE_EMULATOR_HOST": f"http://{cloud.address}"}
        | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(prefix.parent)}
        | variables,
        cwd=prefix.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def tree(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_the_script_installs_what_the_metadata_name_leaves_it_alone_and_replaces_it(
    cloud: Cloud, tmp_path: Path
) -> None:
    vm = tmp_path / "vm"
    first = cloud.offer(make_wheel(tmp_path, "first"))
    done = start(cloud, vm)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        0,
        f"bastion startup: release {first} serves gs://team/alice-bastion",
    )
    assert (vm / "etc/bastion/daemon.env").read_text().splitlines() == [
        "BASTION_ROOT=gs://team/alice-bastion",
        "BASTION_DAEMON_FLAGS=--quota_root=gs://admin/alice-bastion",
    ]
    assert (vm / "etc/systemd/system/bastion.service").read_text("utf-8").strip() == UNIT.read_text("utf-8").strip()
    program = vm / "opt/bastion/current/bin/bastion"
    assert say(program) == "first daemon run"
    assert (program.with_name("needed").exists(), program.with_name("client").exists()) == (True, False)

    cloud.attributes["bastion-slices"] = "cloud"
    assert start(cloud, vm).returncode == 0
    flags = (vm / "etc/bastion/daemon.env").read_text().splitlines()[1]
    assert flags == "BASTION_DAEMON_FLAGS=--quota_root=gs://admin/alice-bastion --slices=cloud"
    before = tree(vm)
    cloud.asked.clear()
    assert start(cloud, vm).returncode == 0
    assert {path: at for path, at in tree(vm).items() if before.get(path) != at} == {}
    assert [path for path in cloud.asked if "/o/" in path] == []

    second = cloud.offer(make_wheel(tmp_path, "second"))
    del cloud.attributes["bastion-quota-root"], cloud.attributes["bastion-slices"]
    assert start(cloud, vm).returncode == 0
    assert say(program) == "second daemon run"
    assert say(vm / "opt/bastion/releases" / first / "bin/bastion") == "first daemon run"
    assert sorted(path.name for path in (vm / "opt/bastion/releases").iterdir()) == sorted([first, second])
    assert "BASTION_DAEMON_FLAGS=\n" in (vm / "etc/bastion/daemon.env").read_text()

    # Known by its own path, so that a job which runs while the link moves keeps its code.
    assert f"releases/{second}/bin/python" in program.read_text()


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_vm_that_serves_a_cluster_has_the_client_and_a_kubeconfig(cloud: Cloud, tmp_path: Path) -> None:
    vm = tmp_path / "vm"
    digest = cloud.offer(make_wheel(tmp_path, "first"))
    cloud.attributes |= {"bastion-extras": "kubernetes", "bastion-kubeconfig": "kind: Config\n"}
    done = start(cloud, vm)
    assert done.returncode == 0, done.stderr
    assert (vm / "opt/bastion/current/bin/client").exists()
    assert (vm / "etc/bastion/kubeconfig").read_text() == "kind: Config\n"
    # Another set of packages is another release.
    assert [path.name for path in (vm / "opt/bastion/releases").iterdir()] == [f"{digest}-kubernetes"]


def test_the_vm_s_token_is_what_kubernetes_clients_want_of_a_plugin(cloud: Cloud) -> None:
    """`vm_token.py`, the `exec` of the kubeconfig that deploy/terraform/gke gives the VM."""
    plugin = DEPLOY / "terraform/gke/modules/cluster/vm_token.py"
    made = subprocess.run(
        [sys.executable, "-c", plugin.read_text("utf-8")],
        env={"GCE_METADATA_HOST": cloud.address},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer = json.loads(made.stdout)
    assert (answer["apiVersion"], answer["kind"]) == ("client.authentication.k8s.io/v1", "ExecCredential")
    assert answer["status"]["token"] == "ya29.token"
    ends = datetime.fromisoformat(answer["status"]["expirationTimestamp"].replace("Z", "+00:00"))
    assert 3500 < (ends - datetime.now(timezone.utc)).total_seconds() <= 3600


def say(program: Path) -> str:
    return subprocess.run([str(program), "daemon", "run"], capture_output=True, text=True, check=True).stdout.strip()


def test_a_wheel_with_another_checksum_is_not_installed(cloud: Cloud, tmp_path: Path) -> None:
    cloud.offer(make_wheel(tmp_path, "first"))
    cloud.attributes["bastion-package-sha256"] = "0" * 64
    done = start(cloud, tmp_path / "vm")
    assert done.returncode == 1
    assert f"is not the file with the SHA-256 {'0' * 64}" in done.stderr
    assert not (tmp_path / "vm/opt").exists()


def test_a_package_that_is_not_the_locked_one_is_not_installed(cloud: Cloud, tmp_path: Path) -> None:
    cloud.offer(make_wheel(tmp_path, "first"))
    make_package(tmp_path, "needed", "changed")
    done = start(cloud, tmp_path / "vm")
    assert done.returncode == 1
    assert "THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE" in done.stderr
    assert "cannot be installed, or are not those of its lock files" in done.stderr
    assert not (tmp_path / "vm/opt/bastion/current").exists()


def test_a_wheel_without_lock_files_is_not_installed(cloud: Cloud, tmp_path: Path) -> None:
    cloud.offer(make_package(tmp_path, "bastion", "first"))
    done = start(cloud, tmp_path / "vm")
    assert done.returncode == 1
    assert "has no lock file for base" in done.stderr
    assert not (tmp_path / "vm/opt").exists()


@pytest.mark.e2e
@pytest.mark.parametrize("sound", [True, False], ids=["locked", "changed"])
def test_a_commit_is_built_with_what_its_lock_file_names(cloud: Cloud, tmp_path: Path, sound: bool) -> None:
    """The clone is of a repository on this machine, in place of one at https://example.com."""
    sources = tmp_path / "example" / "bastion"
    (sources / "bastion" / "requirements").mkdir(parents=True)
    (sources / "pyproject.toml").write_text("[build-system]\nrequires = []\nbuild-backend = 'builder'\n")
    wheel = make_wheel(tmp_path, "built")
    backend = (
        "import pathlib, shutil\n"
        "def build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        f"    return pathlib.Path(shutil.copy({str(wheel)!r}, folder)).name\n"
    )
    builder = make_package(tmp_path, "builder", "builder", source=backend)
    (sources / "bastion/requirements/build.lock").write_text(locked(builder))
    (sources / "bastion/requirements/base.lock").write_text(locked(tmp_path / "needed-0.1.0-py3-none-any.whl"))
    git = ["git", "-C", str(sources), "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=x"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    if not sound:
        make_package(tmp_path, "builder", "changed")
    cloud.attributes["bastion-package"] = f"git+https://example.com/bastion@{commit}"
    rewritten = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_VALUE_0": "https://example.com/"}
    rewritten["GIT_CONFIG_KEY_0"] = f"url.file://{tmp_path}/example/.insteadOf"
    done = start(cloud, tmp_path / "vm", **rewritten)
    assert (done.returncode == 0) == sound, done.stderr
    program = tmp_path / "vm/opt/bastion/current/bin/bastion"
    assert program.exists() == sound
    assert not sound or say(program) == "built daemon run"


def test_a_wheel_that_cannot_be_read_is_told_with_the_permission_that_it_takes(cloud: Cloud, tmp_path: Path) -> None:
    cloud.offer(make_wheel(tmp_path, "first"))
    cloud.objects.clear()
    done = start(cloud, tmp_path / "vm")
    assert done.returncode == 1
    assert "storage.objects.get" in done.stderr


HOSTILE = ["$(touch pwned)", "`touch pwned`", "x; touch pwned", "'; touch pwned; '", "\ntouch pwned", "--help", "../.."]
GOOD = {
    "bastion-root": "gs://team/alice-bastion",
    "bastion-quota-root": "gs://admin/alice-bastion",
    "bastion-package": "gs://admin/alice-bastion/x.whl",
    "bastion-package-sha256": "0" * 64,
}


@pytest.mark.parametrize("name", GOOD)
def test_no_attribute_is_run_as_code_and_a_wrong_one_is_named(cloud: Cloud, tmp_path: Path, name: str) -> None:
    for text in HOSTILE:
        for value in (text, GOOD[name] + text, text + GOOD[name]):
            cloud.attributes |= GOOD | {name: value}
            cloud.asked.clear()
            done = start(cloud, tmp_path / "vm")
            assert done.returncode == 1, value
            assert f"the attribute {name} " in done.stderr, value
            assert [path for path in cloud.asked if "/o/" in path] == []
    assert list(tmp_path.rglob("*pwned*")) == []


@pytest.mark.parametrize(
    "value",
    [
        "git+https://example.com/team/bastion@main",
        "git+https://example.com/team/bastion",
        "git+ssh://example.com/team/bastion@" + "0" * 40,
        "git+https://user:password@example.com/team/bastion@" + "0" * 40,
        "bastion",
        "http://example.com/x.whl",
        "gs://admin/x.tar.gz",
        "",
    ],
)
def test_a_package_that_does_not_name_one_file_or_one_commit_is_refused(
    cloud: Cloud, tmp_path: Path, value: str
) -> None:
    cloud.attributes |= GOOD | {"bastion-package": value}
    done = start(cloud, tmp_path / "vm")
    assert done.returncode == 1
    assert "the attribute bastion-package " in done.stderr


def test_an_unknown_extra_is_refused(cloud: Cloud, tmp_path: Path) -> None:
    cloud.attributes |= GOOD | {"bastion-extras": "kubernetes,evil"}
    done = start(cloud, tmp_path / "vm")
    assert done.returncode == 1
    assert "the attribute bastion-extras is 'kubernetes,evil'; it must look like kubernetes" in done.stderr


def test_slices_of_an_unknown_kind_are_refused(cloud: Cloud, tmp_path: Path) -> None:
    cloud.attributes |= GOOD | {"bastion-slices": "cloudy --root=x"}
    done = start(cloud, tmp_path / "vm")
    assert done.returncode == 1
    assert "the attribute bastion-slices is 'cloudy --root=x'; it must look like cloud or none" in done.stderr


@pytest.mark.parametrize(
    "name", ["bastion-root", "bastion-package", "bastion-package-sha256", "bastion-unit", "bastion-firewall"]
)
def test_a_missing_attribute_is_named(cloud: Cloud, tmp_path: Path, name: str) -> None:
    cloud.attributes |= GOOD
    del cloud.attributes[name]
    done = start(cloud, tmp_path / "vm")
    assert done.returncode == 1
    assert f"the attribute {name} " in done.stderr
    assert not (tmp_path / "vm").exists()


@pytest.mark.parametrize("script", sorted(DEPLOY.glob("*.sh")), ids=lambda path: path.name)
def test_the_scripts_are_sound_shell(script: Path) -> None:
    checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    if shutil.which("shellcheck"):
        checked = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stdout) == (0, "")


def unit() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(UNIT.read_text("utf-8"))
    return parsed


def test_the_unit_runs_what_the_script_installs_and_never_gives_up() -> None:
    service = unit()["Service"]
    script = SCRIPT.read_text("utf-8")
    assert service["ExecStart"].split()[1:] == ["daemon", "run", "$BASTION_DAEMON_FLAGS"]
    assert '"$prefix/opt/bastion/current"' in script
    assert service["ExecStart"].startswith("/opt/bastion/current/bin/bastion ")
    assert f'"$prefix{service["EnvironmentFile"]}"' in script
    assert "useradd --system --user-group --home-dir /var/lib/bastion" in script
    assert (service["User"], service["StateDirectory"]) == ("bastion", "bastion")
    assert service["Restart"] == "always"
    assert unit()["Unit"]["StartLimitIntervalSec"] == "0"


def test_the_unit_may_run_jobs_as_other_users_and_nothing_more_and_starts_behind_the_firewall() -> None:
    service = unit()["Service"]
    needed = sorted(job_user.NEEDED)
    assert sorted(service["AmbientCapabilities"].split()) == needed
    assert sorted(service["CapabilityBoundingSet"].split()) == needed
    assert service["NoNewPrivileges"] == "yes"
    assert service["ExecStartPre"] == "+/opt/bastion/close-metadata"
    script = SCRIPT.read_text("utf-8")
    assert '"$prefix/opt/bastion/close-metadata" --mode=0755' in script
    first, last = POOL[0].rpartition("-")[2], POOL[-1].rpartition("-")[2]
    assert (
        f'u bastion-job-%02d - "A job of the bastion" / /usr/sbin/nologin\\n\' {{{int(first)}..{int(last)}}} |'
        in script
    )


def test_jobs_on_the_vm_survive_the_end_of_the_daemon_and_of_each_other() -> None:
    service = unit()["Service"]
    assert service["KillMode"] == "process"
    assert service["OOMPolicy"] == "continue"
    # It would take the /tmp of running jobs away whenever the daemon is restarted.
    assert "PrivateTmp" not in service
    home = next(word for word in service["Environment"].split() if word.startswith("BASTION_HOME="))
    for folder in (home.partition("=")[2], "/tmp/x", "/var/tmp/x"):
        assert any(folder.startswith(allowed) for allowed in service["ReadWritePaths"].split()), folder


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd is not installed here")
    # It insists that the program exists.
    copy = tmp_path / "bastion.service"
    text = UNIT.read_text("utf-8").replace("/opt/bastion/current/bin/bastion", "/bin/true")
    copy.write_text(text.replace("/opt/bastion/close-metadata", "/bin/true"), "utf-8")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


RUN = str(Run("abcdefghij", 1))
# After how many days a key's object goes; None: the rules must never touch it.
AGES = [
    (roots._APPEND_PARTS + "0123", 1),
    (keys.log("alice-bastion"), 90),
    (keys.log("job"), 90),
    (keys.log_segment("job", RUN, 0, 1), 90),
    ("outputs/job/x", 90),
    (keys.agent_file("a" * 64), 90),
    (keys.job_history("job"), 365),
    (keys.project_history("research", "20260102"), 365),
    (keys.complete("job"), 365),
    (keys.bundle("0" * 64), 365),
    (keys.active("job"), None),
    (keys.user_state("job"), None),
    (keys.state("job"), None),
    (keys.claim(RUN, "tag"), None),
    (keys.invalid("job"), None),
    (keys.order(RUN), None),
    (keys.report(RUN, 0), None),
    (keys.beat(RUN, 0), None),
    (keys.LEASE, None),
    (keys.STATUS, None),
    (keys.RUNTIME_OPTIONS, None),
    (keys.PROJECT_QUOTAS, None),
    (keys.former_quota(0, 1), None),
]


@pytest.mark.parametrize(("key", "days"), AGES, ids=[key for key, _ in AGES])
def test_the_lifecycle_rules_take_what_is_over_and_nothing_else(key: str, days: int | None) -> None:
    rules = json.loads((DEPLOY / "lifecycle.json").read_text("utf-8"))["rule"]
    ages = [
        rule["condition"]["age"]
        for rule in rules
        if any(f"NAME-bastion/{key}".startswith(prefix) for prefix in rule["condition"]["matchesPrefix"])
    ]
    assert ages == ([] if days is None else [days])


def test_every_lifecycle_rule_deletes_by_age_and_prefix_alone() -> None:
    for rule in json.loads((DEPLOY / "lifecycle.json").read_text("utf-8"))["rule"]:
        assert rule["action"] == {"type": "Delete"}
        assert set(rule["condition"]) == {"age", "matchesPrefix"}
        assert all(
            prefix.startswith("NAME-bastion/") and prefix.endswith("/") for prefix in rule["condition"]["matchesPrefix"]
        )
