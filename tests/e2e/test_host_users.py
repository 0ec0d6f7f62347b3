"""Commands on the bastion's host as users of their own: a daemon that is root, and one with four capabilities, as the
unit of `deploy/` starts it. As root only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bastion.adapters import bastion_host_users
from bastion.benchmark import documents, measurements
from bastion.core.bucket import keys
from bastion.core.errors import NotFound
from bastion.wiring.local import down
from bastion.wiring.local_home import LocalHome
from bastion.wiring.local_starter_quota import starter_quota
from bastion.wiring.roots import open_root
from tests.support.unix_users import claim_users
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run commands as other users here"),
]
REPOSITORY = Path(__file__).resolve().parents[2]
DAEMON = claim_users()
FIRST = DAEMON + 1
USER = "tester"
CAPABILITIES = "+chown,+kill,+setgid,+setuid"


@dataclass
class Machine:
    """A VM with a daemon, and its users."""

    folder: Path
    program: list[str]
    daemon_user: int
    daemon: subprocess.Popen[bytes] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return str(self.folder / "bucket" / "e2e-bastion")

    def start(self, mode: str = "own-user") -> None:
        log = (self.folder / "daemon.log").open("ab")
        flags = [f"--root={self.url}", "--slices=none", "--tick_seconds=0.2", f"--bastion_host_jobs={mode}"]
        self.daemon = subprocess.Popen([*self.program, "daemon", "run", *flags], env=self.environment, stderr=log)

    def bastion(self, *arguments: str, code: int = 0) -> str:
        flags = [f"--root={self.url}"]
        at = arguments.index("--") if "--" in arguments else len(arguments)
        done = subprocess.run(
            [*self.program, *arguments[:at], *flags, *arguments[at:]],
            env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
        assert done.returncode == code, (done.stdout, done.stderr, (self.folder / "daemon.log").read_text())
        return done.stdout + done.stderr

    def log(self, job: str) -> str:
        try:
            return open_root(self.url).get(keys.log(job)).data.decode()
        except NotFound:
            return ""

    def launch(self, name: str, script: str, *, code: int = 0) -> str:
        flags = [f"--name={name}", f"--user_id={USER}", "--project_id=default", "--bundle=none", "--wait"]
        return self.bastion("launch", *flags, "--", "bash", "-c", script, code=code)


def program_for_all(folder: Path) -> str:
    """A Python with this package that every user may run; this one may be in root's home."""
    if _everybody_reaches(Path(sys.executable).resolve()):
        return sys.executable
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(f"/usr/bin/python{version}")
    if not base.exists():
        pytest.skip(f"only root can run {sys.executable}, and there is no {base}")
    packages = folder / "python" / "lib" / f"python{version}" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "python" / "bin").mkdir()
    (folder / "python" / "bin" / "python3").symlink_to(base)
    (folder / "python" / "pyvenv.cfg").write_text(f"home = {base.parent}\nversion = {version}\n")
    (packages / "here.pth").write_text(f"{REPOSITORY}\n{sysconfig.get_path('purelib')}\n")
    return str(folder / "python" / "bin" / "python3")


def _everybody_reaches(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in path.parents)


@pytest.fixture(params=["root", "capabilities"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    bastion_host_users.open_way([tmp_path, *tmp_path.parents])
    home = LocalHome(tmp_path / "home")
    program = [program_for_all(tmp_path), "-m", "bastion.cli.main"]
    user = 0
    if request.param == "capabilities":
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not installed here")
        user = DAEMON
        drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", f"--inh-caps={CAPABILITIES}"]
        drop += [f"--ambient-caps={CAPABILITIES}", f"--bounding-set=-all,{CAPABILITIES}", "--no-new-privs"]
        program = [*drop, *program]
    environment = {
        **os.environ,
        "BASTION_HOME": str(home.path),
        "BASTION_JOB_USERS": ",".join(f"{FIRST + number}:{FIRST + number}" for number in range(3)),
        "SECRET_OF_THE_DAEMON": "x",
        "LOGNAME": USER,
        "USER": USER,
        "HTTPS_PROXY": "",
    }
    machine = Machine(tmp_path, program, user, environment=environment)
    store = open_root(machine.url)
    store.put("project-quotas/project-quotas.config", starter_quota(USER), generation=0)
    home.run_dir.mkdir(parents=True)
    for each in [tmp_path, *tmp_path.rglob("*")]:
        os.chown(each, user, user, follow_symlinks=False)
    (tmp_path / "witness").touch()
    (tmp_path / "witness").chmod(0o666)
    yield machine
    if machine.daemon is not None:
        machine.daemon.terminate()
        machine.daemon.wait(60)
    down(home, say=lambda _: None)


PROBE = """
id -u; pwd; echo "processes $(ulimit -u) $(ulimit -Hu)"
cd "$HOME" && touch kept && cd "$TMPDIR" && touch kept && echo wrote
grep Cap /proc/self/status
env
cat /proc/$PPID/environ && echo STOLEN
kill -9 $PPID && echo KILLED
ls "$HOME/../.." && echo LISTED
touch "$HOME/../../started-7" && echo FORGED
setsid -f sleep 600; env -i setsid -f bash -c 'trap "" TERM; sleep 600; sleep 600'
exit 3
"""


def test_a_command_has_a_user_of_its_own_and_nothing_of_the_daemon(machine: Machine) -> None:
    machine.start()
    out = machine.launch("probe", PROBE, code=3)
    lines = out.splitlines()
    assert str(FIRST) in lines
    assert "wrote" in lines
    assert "processes 4096 4096" in lines
    for word in ("STOLEN", "KILLED", "LISTED", "FORGED", "SECRET_OF_THE_DAEMON", "BASTION_HOME", "BASTION_JOB_USERS"):
        assert not any(line.startswith(word) for line in lines), out
    for line in lines:
        if line.startswith(("CapEff", "CapPrm", "CapAmb")):
            assert int(line.split()[1], 16) == 0, line
    users = [FIRST + number for number in range(3)]
    until(lambda: not any(process for user in users for process in bastion_host_users.job_user.processes.of_user(user)))


def test_a_command_that_runs_as_the_daemon_has_none_of_its_capabilities(machine: Machine) -> None:
    machine.start("as-daemon")
    out = machine.launch("probe", "id -u; grep CapEff /proc/self/status; setpriv --reuid=1 true || echo refused")
    assert str(machine.daemon_user) in out.splitlines()
    if machine.daemon_user:
        assert "CapEff:\t0000000000000000" in out
        assert "refused" in out.splitlines()


FILE = """
name = "sleep"
project = "default"
repeats = 1

[matrix]
size = [1]

[run]
command = '''
echo '{{{{"metric": "seconds", "value": 1.'{{size}}'}}}}' >> "$BASTION_RESULTS_FILE"
'''
instance_type = "tpu-v4-8"
setup = ""
bundle = "code"
max_run = "60s"
deadline = "200s"

[environment]
up = ["echo up $(id -u) $(ls) $SECRET_OF_THE_DAEMON >> {witness}", "cat /proc/$PPID/environ >> {witness}; true"]
down = ["echo down $(id -u) $BASTION_BENCHMARK_TIME $BASTION_OUTCOME >> {witness}"]

[metrics.seconds]
unit = "s"
better = "lower"
"""


@pytest.mark.parametrize("machine", ["capabilities"], indirect=True)  # a step is the same for root
def test_a_benchmark_begins_and_ends_its_lines_run_as_the_jobs_user_and_its_code_is_never_the_agents(
    machine: Machine,
) -> None:
    witness = machine.folder / "witness"
    code = machine.folder / "code"
    (code / "bastion" / "cli").mkdir(parents=True)
    theft = f"import os\nopen({str(witness)!r}, 'a').write(f'stolen as {{os.getuid()}}\\n')\n"
    for path in ("sitecustomize.py", "usercustomize.py", "bastion/__init__.py", "bastion/cli/main.py"):
        (code / path).write_text(theft)
    (machine.folder / "bench.toml").write_text(FILE.format(witness=witness))
    machine.start()
    machine.bastion("benchmark", "check", "bench.toml", f"--user_id={USER}")
    machine.bastion("benchmark", "run", "bench.toml", f"--user_id={USER}")
    store = open_root(machine.url)
    (run,) = measurements.runs(store, "sleep")
    matrix = documents.read_matrix(store, "sleep", run)
    # There are no slices here: the members wait until someone cancels the run.
    until(lambda: "environ" in (machine.log(matrix.finisher)))
    machine.bastion("benchmark", "cancel", f"sleep/{run}")
    until(lambda: store.head(keys.complete(matrix.finisher)))
    lines = witness.read_text().splitlines()
    up, down_ = (line.split() for line in lines if line.startswith(("up", "down")))
    assert up == ["up", str(FIRST), "bastion", "sitecustomize.py", "usercustomize.py"]
    # Another user, if the one before is not free yet.
    assert int(down_[1]) in range(FIRST, FIRST + 3)
    assert down_[2:] == ["1", "cancelled"]
    assert not any("stolen" in line or "SECRET_OF_THE_DAEMON" in line for line in lines)
    assert list(store.list(f"benchmarks/sleep/{run}/report/"))
    # The same command under another name is a stranger's: it runs as its user, who cannot write the bucket.
    victim = f"exec python3 -I -m bastion.cli.main benchmark finish sleep/{run} --root={machine.url}"
    before = sorted(meta.key for meta in store.list("benchmarks/"))
    flags = ["--name=stranger", "--user_id=tester", "--project_id=default", "--bundle=none", "--wait", "--raw"]
    done = subprocess.run(
        [*machine.program, "launch", *flags, f"--root={machine.url}", "--", victim],
        env=machine.environment, cwd=machine.folder, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode != 0
    assert store.head(keys.complete("stranger")), (done.stdout, done.stderr)
    assert sorted(meta.key for meta in store.list("benchmarks/")) == before
