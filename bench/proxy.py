"""Measure what the storage proxy costs: `python bench/proxy.py [--rounds=5] [--mib=128] [--within] [--base=PYTHON]`.

Prints ratios, because megabytes per second differ between machines. Each round measures, one after the other: directly
to a server (`bench/storage_sink.py`), through a plain TLS relay (`bench/relay.py`), through `bastion proxy run` without
encryption, and with encryption. All use TLS and one client process with four connections. A figure is the median of
the rounds; a ratio is the median of the rounds' ratios. Then directly and through the encrypting proxy to a server
that is as slow as storage is for one host.

With `--base`, the interpreter of another version's environment, only the encrypting proxies of both versions alternate.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import multiprocessing
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bastion.net.tls import Authority, new_key

HOST = "storage.googleapis.com"
CONNECTIONS = 4
PIECE_BYTES = 256 * 1024
MIB = 1024 * 1024
# A quarter of what the acceptance test's four hosts moved.
PACED_UP, PACED_DOWN = 278 * MIB, 417 * MIB
KEK = "projects/bench/locations/here/keyRings/ring/cryptoKeys/key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How clients reach the server.

    Attributes:
        port: The port on this machine.
        connect: Whether it is a proxy, used with CONNECT.
        ca_file: The authority to trust.
        between: The process between client and server, which may have children; 0: none.
    """

    name: str
    port: int
    connect: bool
    ca_file: Path
    between: int = 0

    def processor_seconds(self) -> float:
        """Return the CPU seconds that the processes between have used so far."""
        ticks = 0
        for process in with_children(self.between) if self.between else []:
            fields = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def with_children(process: int) -> list[int]:
    """Return a process and its descendants."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text("ascii").split()
    return [process, *map(int, children)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The task of one client process: each connection moves one object."""

    route: Route
    method: str
    size: int


def connection(route: Route) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", route.port))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if route.connect:
        plain.sendall(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode())
        assert plain.recv(1000).startswith(b"HTTP/1.1 200 ")
    return ssl.create_default_context(cafile=route.ca_file).wrap_socket(plain, server_hostname=HOST)


def read_head(tls: ssl.SSLSocket, memory: memoryview) -> tuple[int, int]:
    """Return the length of the body that follows, and how much of it has arrived."""
    filled = 0
    while True:
        count = tls.recv_into(memory[filled:])
        assert count, f"the connection ended after {bytes(memory[:filled])!r}"
        filled += count
        head, end, rest = bytes(memory[:filled]).partition(b"\r\n\r\n")
        if end:
            break
    assert head.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 206 ")), bytes(memory[:filled])
    return int(head.lower().partition(b"\r\ncontent-length:")[2].split()[0]), len(rest)


def move(tls: ssl.SSLSocket, method: str, name: str, size: int, memory: memoryview) -> None:
    """Upload or download one object, and read the whole answer."""
    common = f"HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer none\r\n"
    if method == "GET":
        tls.sendall(f"GET /storage/v1/b/bench/o/{name}?alt=media {common}\r\n".encode())
    else:
        target = f"/upload/storage/v1/b/bench/o?uploadType=media&name={name}"
        common += f"Content-Type: application/octet-stream\r\nContent-Length: {size}\r\n"
        tls.sendall(f"POST {target} {common}\r\n".encode())
        left = size
        while left:
            piece = memory[: min(left, PIECE_BYTES)]
            tls.sendall(piece)
            left -= len(piece)
    length, got = read_head(tls, memory)
    assert method != "GET" or length == size, f"{length} bytes came of {size}"
    while got < length:
        count = tls.recv_into(memory)
        assert count, "the body broke off"
        got += count


def work(job: Job) -> float:
    """Return the seconds from the first byte to the last answer, over all connections."""
    begin = threading.Barrier(CONNECTIONS + 1)
    failed: list[BaseException] = []

    def one(number: int) -> None:
        try:
            with connection(job.route) as tls:
                memory = memoryview(bytearray(os.urandom(PIECE_BYTES)))
                begin.wait()
                name = f"keep-{job.route.name}" if job.method == "GET" else f"drop-{job.route.name}-{number}"
                move(tls, job.method, name, job.size, memory)
        except (OSError, AssertionError, threading.BrokenBarrierError) as error:
            failed.append(error)
            begin.abort()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        begin.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    if failed:
        raise RuntimeError(f"{job}: {failed[0]!r}")
    return time.perf_counter() - began


@contextlib.contextmanager
def started(*command: object) -> Iterator[tuple[int, int]]:
    """Run a process of this bench; yield the port that it prints, and its id."""
    words = [sys.executable, *(str(word) for word in command)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process.pid
        finally:
            process.terminate()


@contextlib.contextmanager
def proxy(name: str, folder: Path, server: int, *, encrypt: bool, python: str = sys.executable) -> Iterator[Route]:
    """Run `bastion proxy run` in front of the server.

    Args:
        python: The interpreter, which determines the version.
    """
    own, public = folder / name, folder / name / "public"
    own.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {
        "GCP_KMS_BUCKET_KEY_MAPPING": f"bench:{KEK}",
        "GCS_PROXY_DISABLE_ENCRYPTION": "false" if encrypt else "true",
        "GCS_PROXY_KEYRING": str(folder / "keyring"),
        "GCS_PROXY_LISTEN": f"127.0.0.1:{port}",
        "GCS_PROXY_UPSTREAM": f"https://localhost:{server}",
        "PROXY_CERT_PATH": str(public),
        "SSL_CERT_FILE": str(folder / "ca.pem"),
        "HOME": str(own),
    }
    command = [python, "-m", "bastion.cli.main", "proxy", "run"]
    with (folder / f"{name}.log").open("wb") as log:
        # Not in this version's folder, where its modules would be found.
        process = subprocess.Popen(command, cwd=own, env=environment, stdout=log, stderr=log)
    try:
        ca_file = public / "mitmproxy-ca-cert.pem"
        while not ca_file.exists():
            assert process.poll() is None, (folder / f"{name}.log").read_text()
            time.sleep(0.05)
        yield Route(name=name, port=port, connect=True, ca_file=ca_file, between=process.pid)
    finally:
        process.terminate()
        process.wait()


def pace(route: Route, up: float, down: float) -> None:
    with connection(route) as tls:
        tls.sendall(f"PUT /pace?up={up}&down={down} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        read_head(tls, memoryview(bytearray(1000)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of all connections together.

    Attributes:
        rounds: Seconds from the first byte to the last answer, of each round.
        used: CPU seconds of the processes between client and server, of each round.
    """

    rounds: list[float]
    used: list[float]

    @property
    def processor_seconds(self) -> float:
        return statistics.median(self.used)

    @property
    def seconds(self) -> float:
        return statistics.median(self.rounds)

    def over(self, other: Figures) -> float:
        """Return the median of the rounds' ratios of time; the machine's speed changes from minute to minute."""
        return _ratio(self.rounds, other.rounds)

    def used_over(self, other: Figures) -> float:
        """Return the same ratio for CPU seconds."""
        return _ratio(self.used, other.used)


def _ratio(rounds: list[float], others: list[float]) -> float:
    return statistics.median(own / other for own, other in zip(rounds, others, strict=True))


def measured(routes: list[Route], method: str, *, size: int, rounds: int) -> dict[str, Figures]:
    """Measure all routes; they alternate."""
    seconds: dict[str, list[tuple[float, float]]] = {route.name: [] for route in routes}
    # Its own process, like a client: its threads do not wait for ours.
    with multiprocessing.get_context("spawn").Pool(1) as clients:
        for turn in range(rounds + 1):
            for route in routes:
                before = route.processor_seconds()
                taken = clients.apply(work, (Job(route=route, method=method, size=size),))
                # The first round warms up connections, keys and buffers.
                if turn:
                    seconds[route.name].append((taken, route.processor_seconds() - before))
    return {
        name: Figures(
            rounds=[whole for whole, _ in taken],
            used=[used for _, used in taken],
        )
        for name, taken in seconds.items()
    }


def keep(route: Route, size: int) -> None:
    """Upload by the same route what is downloaded later."""
    with connection(route) as tls:
        move(tls, "POST", f"keep-{route.name}", size, memoryview(bytearray(os.urandom(PIECE_BYTES))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One figure and its goal."""

    name: str
    value: float
    most: float | None = None
    least: float | None = None

    @property
    def within(self) -> bool:
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)

    def __str__(self) -> str:
        goal = f"at most {self.most:g}" if self.most is not None else f"at least {self.least:g}"
        return f"{self.name:48} {self.value:6.3f}   {goal:14} {'ok' if self.within else 'MISSED'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=128, help="size of each object")
    parser.add_argument("--within", action="store_true", help="fail if a goal is missed")
    parser.add_argument("--base", default="", help="interpreter of another version, to compare with")
    given = parser.parse_args()
    if given.base:
        compare(given.base, size=given.mib * MIB, rounds=given.rounds)
        return
    size = given.mib * MIB
    total = CONNECTIONS * size
    ratios: list[Ratio] = []
    table: dict[str, dict[str, Figures]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        routes = [*ways(stack, folder)]
        straight, encrypting = routes[0], routes[-1]
        for method, words, off_on in (("POST", "up", 1.10), ("GET", "down", 1.05)):
            if method == "GET":
                for route in routes:
                    keep(route, size)
            of = table[words] = measured(routes, method, size=size, rounds=given.rounds)
            ratios += [
                Ratio(name=f"{words}: encryption on/off, time", value=of["on"].over(of["off"]), most=off_on),
                Ratio(name=f"{words}: on/relay, throughput", value=of["relay"].over(of["on"]), least=0.85),
                Ratio(name=f"{words}: off/relay, throughput", value=of["relay"].over(of["off"]), least=0.85),
            ]
        pace(straight, PACED_UP, PACED_DOWN)
        for method, words in (("POST", "up, paced"), ("GET", "down, paced")):
            of = table[words] = measured([straight, encrypting], method, size=size, rounds=given.rounds)
            value = of["on"].over(of["direct"])
            ratios.append(Ratio(name=f"{words}: on/direct, time", value=value, most=1.05))
    print("MiB/s, and CPU seconds per GiB of the processes between client and server")
    for words, of in table.items():
        for name, figures in of.items():
            used = f"{figures.processor_seconds / total * 1024 * MIB:.2f}" if figures.processor_seconds else ""
            print(f"{words:12} {name:8} {total / figures.seconds / MIB:8,.0f} {used:>10}")
    print("\n".join(str(ratio) for ratio in ratios))
    if given.within and not all(ratio.within for ratio in ratios):
        sys.exit(1)


def compare(base: str, *, size: int, rounds: int) -> None:
    """Compare this version's encrypting proxy with another version's, and print the result."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        direct, _, _, on = ways(stack, folder)
        other = stack.enter_context(proxy("base", folder, direct.port, encrypt=True, python=base))
        for method, words in (("POST", "up"), ("GET", "down")):
            if method == "GET":
                keep(on, size)
                keep(other, size)
            of = measured([other, on], method, size=size, rounds=rounds)
            for name, value in (
                ("time", of["on"].over(of["base"])),
                ("CPU seconds", of["on"].used_over(of["base"])),
            ):
                print(Ratio(name=f"{words}: this version/base, {name}", value=value, most=1.05), flush=True)


def ways(stack: contextlib.ExitStack, folder: Path) -> Iterator[Route]:
    """Start everything; direct first, encryption last."""
    now, life = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=2)
    authority = Authority.new("bench", now=now, lifetime=life)
    server = authority.sign("bench", [HOST, "localhost"], key=new_key(), now=now, lifetime=life)
    ca_file, server_file = folder / "ca.pem", folder / "server.pem"
    ca_file.write_bytes(authority.public_pem)
    server_file.write_bytes(server.private_pem)
    here = Path(__file__).parent
    port, _ = stack.enter_context(started(here / "storage_sink.py", server_file))
    yield Route(name="direct", port=port, connect=False, ca_file=ca_file)
    relay, process = stack.enter_context(started(here / "relay.py", server_file, ca_file, port))
    yield Route(name="relay", port=relay, connect=False, ca_file=ca_file, between=process)
    subprocess.run(
        [sys.executable, "-m", "bastion.cli.main", "proxy", "keyring", "create", f"--key={KEK}", folder / "keyring"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    yield stack.enter_context(proxy("off", folder, port, encrypt=False))
    yield stack.enter_context(proxy("on", folder, port, encrypt=True))


if __name__ == "__main__":
    main()
