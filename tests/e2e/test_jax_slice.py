"""Real JAX on emulated slices: hosts of one machine that see each other's devices."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from bastion import job_user, processes
from bastion.adapters.system_clock import SystemClock
from bastion.agent.command_user import CommandUser
from bastion.agent.host import Host
from bastion.agent.identity import HostIdentity
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import AgentArguments, HostPhase, Order, OrderAction, Report
from bastion.core.errors import NotFound
from bastion.core.run_keys import RunKey
from bastion.testing.memory_store import MemoryStore
from bastion.wiring.buckets import open_bucket
from bastion.wiring.roots import fetch_asset
from tests.support.extras import needs
from tests.support.stored_logs import stored_text
from tests.support.unix_users import claim_users

needs("jax")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

DEVICES = 4


class Slices:
    """A job on emulated hosts, each with a loopback address of its own."""

    def __init__(self, folder: Path, *, first_user: int | None = None) -> None:
        """`first_user`: number of the user of host 0's commands, and so on; None: all run as this process."""
        self.folder = folder
        self._first_user = first_user
        self.store = MemoryStore()
        # Unlike other tests' on this machine, so that neither ports nor markers meet.
        self.run = "".join(secrets.choice("abcdefghijklmnop") for _ in range(10)) + "-1"
        self.key = RunKey(secrets.token_bytes(32))
        self.block = 1 + secrets.randbelow(250)
        self.hosts: list[tuple[Host, threading.Thread]] = []

    def start(self, program: str, *, slices: int = 1, hosts: int = 4, only: int | None = None, env=None) -> None:
        """Starts a Python program on every host (or the first `only` of them)."""
        script = self.folder / "program.py"
        script.write_text(textwrap.dedent(program))
        order = Order(run=self.run, action=OrderAction.RUN, command=f"python3 {script}", env=env or {})
        self.store.put(keys.order(self.run), order.to_bytes(), generation=0)
        for number in range(slices * hosts if only is None else only):
            host = self._host(number // hosts, number % hosts, slices, hosts)
            thread = threading.Thread(target=host.run, daemon=True)
            thread.start()
            self.hosts.append((host, thread))

    def finish(self, seconds: float = 200.0) -> list[Report]:
        """The hosts' final reports."""
        deadline = time.monotonic() + seconds
        while True:
            reports = [self._report(number) for number in range(len(self.hosts))]
            ended = [report for report in reports if report is not None and report.phase.final]
            if len(ended) == len(self.hosts):
                return ended
            assert time.monotonic() < deadline, [self.log(number) for number in range(len(self.hosts))]
            time.sleep(0.05)

    def log(self, host: int, stream: str = "stdout") -> list[str]:
        text = stored_text(self.store, keys.log_segments("job", self.run, host))
        lines = [line.split(" ", 3) for line in text.splitlines()]
        return [line[3] for line in lines if line[1] == stream]

    def end(self) -> None:
        for host, _ in self.hosts:
            host.shut_down()
        for number, (_, thread) in enumerate(self.hosts):
            thread.join(60.0)
            assert not thread.is_alive()
            marker = f"{self.run}.{number}.{self.key.public[:8]}"
            assert processes.end_marked("BASTION_COMMAND", marker, grace_seconds=0)

    def _host(self, slice_index: int, worker: int, slices: int, hosts: int) -> Host:
        arguments = AgentArguments(
            root="/b/team-bastion",
            bastion="team-bastion",
            job="job",
            run=self.run,
            run_key=self.key.text,
            slice_index=slice_index,
            num_slices=slices,
            hosts_per_slice=hosts,
            accelerator_type=f"v4-{hosts * 8}",
            devices_per_host=DEVICES,
            poll_seconds=0.05,
        )
        peers = tuple(f"127.101.{self.block}.{slice_index * hosts + n + 1}" for n in range(hosts))
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "BASTION_EMULATED_TPU": "1",
            "BASTION_EMULATED_BOOT_ID": f"boot-{slice_index}-{worker}",
        }
        number = slice_index * hosts + worker
        user = None
        if self._first_user is not None:
            user = CommandUser(user=job_user.resolve(f"{self._first_user + number}:{self._first_user}"))
        return Host(
            HostIdentity(arguments=arguments, worker=worker, peers=peers),
            self.store,
            clock=SystemClock(),
            rng=Random(1),
            environ=environ,
            state_dir=self.folder / "state",
            fetch=fetch_asset,
            open_bucket=open_bucket,
            secrets={},
            command_user=user,
        )

    def _report(self, host: int) -> Report | None:
        try:
            return protocol.read(Report, self.store.get(keys.report(self.run, host)).data)
        except NotFound:
            return None


@pytest.fixture
def slices(tmp_path: Path) -> Iterator[Slices]:
    slices = Slices(tmp_path)
    yield slices
    slices.end()


@pytest.fixture
def users() -> Iterator[Slices]:
    """Slices whose hosts run commands as users of their own."""
    first = claim_users()
    if os.geteuid() != 0:
        pytest.skip("needs root: only it can run commands as another user")
    try:
        subprocess.run([sys.executable, "-c", ""], check=True, user=first, group=first)
    except PermissionError:
        pytest.skip(f"needs a Python that every user may run; {sys.executable} is none")
    folder = Path(tempfile.mkdtemp(prefix="bastion-jax-users-"))
    folder.chmod(0o711)
    slices = Slices(folder, first_user=first)
    yield slices
    slices.end()
    shutil.rmtree(folder)


def codes(reports: list[Report]) -> list[int | None]:
    assert {report.phase for report in reports} == {HostPhase.EXITED}
    return [report.exit_code for report in reports]


def test_a_plain_program_on_four_hosts_sees_sixteen_devices_and_sums_over_them(slices: Slices) -> None:
    slices.start(
        """
        import jax
        import jax.numpy as jnp
        from jax.experimental import multihost_utils

        print(jax.device_count(), jax.local_device_count(), jax.process_index(), jax.process_count())
        print(multihost_utils.process_allgather(jnp.asarray(jax.process_index())).tolist())
        mesh = jax.make_mesh((jax.device_count(),), ("x",))
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
        ones = jax.make_array_from_callback((16,), sharding, lambda index: jnp.ones(1))
        print(float(jax.jit(jnp.sum)(ones)))
        """
    )
    assert codes(slices.finish()) == [0, 0, 0, 0]
    for host in range(4):
        # Nothing of the collectives' chatter either.
        assert slices.log(host) == [f"16 4 {host} 4", "[0, 1, 2, 3]", "16.0"]


def test_hosts_whose_commands_have_users_of_their_own_are_a_slice_too(users: Slices) -> None:
    users.start(
        """
        import os
        import jax
        from jax.experimental import multihost_utils
        import jax.numpy as jnp

        print(jax.device_count(), os.getuid() - os.getgid())
        print(multihost_utils.process_allgather(jnp.asarray(jax.process_index())).tolist())
        """,
        hosts=2,
    )
    assert codes(users.finish()) == [0, 0]
    assert [users.log(host) for host in range(2)] == [["8 0", "[0, 1]"], ["8 1", "[0, 1]"]]


def test_programs_one_after_the_other_and_their_own_initialize_work_too(slices: Slices) -> None:
    slices.start(
        """
        import subprocess, sys
        plain = "import jax; print(jax.device_count())"
        explicit = "import jax; jax.distributed.initialize(); print(jax.device_count())"
        for program in (plain, explicit, plain):
            subprocess.run([sys.executable, "-c", program], check=True)
        """,
        hosts=2,
    )
    assert codes(slices.finish()) == [0, 0]
    assert slices.log(0) == slices.log(1) == ["8", "8", "8"]


@pytest.mark.parametrize("explicit", [False, True])
def test_hosts_of_two_slices_see_all_devices(slices: Slices, explicit: bool) -> None:
    initialize = "jax.distributed.initialize()" if explicit else ""
    slices.start(f"import jax\n{initialize}\nprint(jax.device_count(), jax.process_index())", slices=2, hosts=1)
    assert codes(slices.finish()) == [0, 0]
    assert [slices.log(0), slices.log(1)] == [["8 0"], ["8 1"]]


def test_a_host_whose_peer_never_comes_ends_with_a_code_and_words(slices: Slices) -> None:
    slices.start(
        "import jax\nprint(jax.devices())",
        hosts=2,
        only=1,
        env={"BASTION_DISTRIBUTED_TIMEOUT_SECONDS": "2"},
    )
    assert codes(slices.finish()) == [70]
    assert slices.log(0) == []
    assert any("host 0 of 2 could not join the slice" in line for line in slices.log(0, "stderr"))


def test_a_program_that_opts_out_has_its_own_devices_only(slices: Slices) -> None:
    slices.start(
        "import jax\nprint(jax.device_count(), jax.process_count())",
        hosts=2,
        only=1,
        env={"BASTION_NO_AUTO_DISTRIBUTED": "1"},
    )
    assert codes(slices.finish()) == [0]
    assert slices.log(0) == ["4 1"]


def test_python_without_jax_does_not_notice_the_hook(slices: Slices) -> None:
    slices.start("import sys\nprint(sys.executable)", hosts=2, only=1)
    assert codes(slices.finish()) == [0]
    assert Path(slices.log(0)[0]).parent == Path(sys.executable).parent
