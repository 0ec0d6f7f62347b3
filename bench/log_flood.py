"""Send a flood of output through a host's whole log: `python bench/log_flood.py [--rate=100] [--seconds=10]`.

A child writes numbered lines at the given rate (MB/s) into the real pump, spool and uploader: once with a folder
bucket, once with a bucket that does not answer until the child has ended. Each case runs in its own process, so that
its memory can be measured. At the end every segment is read: each line must be there in order, or be counted by a gap
line to the byte.

The baseline is the same child writing into `cat > /dev/null`. The child catches up on what it could not write in time;
its longest single write shows whether it was ever blocked.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random

from bastion.adapters.folder.store import DirectoryStore
from bastion.adapters.system_clock import SystemClock
from bastion.agent.identity import HostIdentity
from bastion.agent.logs.host_log import HostLog
from bastion.agent.results.mllog_tap import MllogTap
from bastion.core.bucket import keys
from bastion.core.bucket.protocol import AgentArguments
from bastion.testing.faulty_store import FaultyStore

RUN = "aaaaaaaaaa-1"
MB = 1_000_000
LINES_AT_ONCE = 640

CHILD = """
import os, sys, time
rate, seconds, width, lines = (float(sys.argv[1]) * 1e6, float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
line = b"%-" + b"%d" % (width - 1) + b"d\\n"
begun = time.monotonic(); written = number = 0; longest = 0.0
while (now := time.monotonic()) < begun + seconds:
    if written > (now - begun) * rate:
        time.sleep(0.0005)
        continue
    data = b"".join([line % n for n in range(number, number + lines)])
    before = time.monotonic()
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest):]
    longest = max(longest, time.monotonic() - before)
    written += len(data); number += lines
sys.stderr.write("%d %d %.3f %.3f\\n" % (written, number, time.monotonic() - begun, longest))
"""


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def check(store: DirectoryStore, written: int, width: int) -> tuple[int, int, int]:
    """Read all segments; return their number, the bytes of lines in them, and the bytes that gaps count.

    Raises:
        AssertionError: A line is missing, duplicated or out of order, and no gap says so.
    """
    segments = stored = lost = 0
    expected = 0
    for meta in store.list(keys.log_segments("job", RUN, 0)):
        segments += 1
        for line in store.get(meta.key).data.splitlines():
            _, stream, _, text = line.split(b" ", 3)
            if stream == b"gap":
                missing = int(text.split()[0])
                lost += missing
                assert missing % width == 0, "a gap ends within a line"
                expected += missing // width
            elif stream == b"stdout":
                assert int(text) == expected, f"line {expected} is missing"
                assert len(text) == width - 1
                stored += width
                expected += 1
    assert stored + lost == written, f"{written - stored - lost} bytes of {written} are missing, and no gap says so"
    return segments, stored, lost


def flood(rate: float, seconds: float, width: int, *, stalled: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = DirectoryStore(Path(folder) / "bucket", fsync=False)
        store = FaultyStore(directory, before=1.0 if stalled else 0.0)
        arguments = AgentArguments(root="/b/x-bastion", bastion="x-bastion", job="job", run=RUN, run_key="ab" * 32)
        ended = threading.Event()
        log = HostLog(
            store,
            HostIdentity(arguments=arguments, worker=0),
            Path(folder) / "spool",
            clock=SystemClock(),
            rng=Random(1),
            drop_noise=False,
            is_urgent=lambda: False,
            on_change=ended.set,
        )
        log.open()
        log.start()
        before, used = resident_mb(), time.process_time()
        out, out_end = os.pipe()
        err, err_end = os.pipe()  # nothing comes of it
        writer = child(rate, seconds, width, stdout=out_end)
        os.close(out_end)
        os.close(err_end)
        pump = log.pump({"stdout": out, "stderr": err}, tap=MllogTap(Path(folder) / "mllog").look)
        most_spooled = most_resident = 0.0
        while not pump.done:
            time.sleep(0.05)
            most_spooled = max(most_spooled, log.spooled_bytes / MB)
            most_resident = max(most_resident, resident_mb())
        assert writer.stderr is not None
        report = writer.stderr.read()
        writer.wait()
        written, _, took, _ = map(float, report.split())
        used_at_end = time.process_time() - used
        begun = time.monotonic()
        store.enabled = False
        log.close()
        while not log.done:
            ended.wait(1.0)
            ended.clear()
            most_resident = max(most_resident, resident_mb())
        flushed = time.monotonic() - begun
        segments, stored, lost = check(directory, int(written), width)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB
    print(
        f"{told(report, 'stalled store' if stalled else 'store in a folder', width)}\n"
        f"  stored {stored / MB:.0f} MB in {segments} segments, {lost / MB:.0f} MB counted as lost, all accounted for; "
        f"the rest was stored {flushed:.1f} s after the end\n"
        f"  spool at most {most_spooled:.0f} MB; memory {before:.0f} MB before, {most_resident:.0f} MB at most "
        f"(peak with the check {peak:.0f} MB); {used_at_end / took:.2f} cores while the child ran",
        flush=True,
    )


def child(rate: float, seconds: float, width: int, **pipes: object) -> subprocess.Popen[bytes]:
    values = map(str, (rate, seconds, width, LINES_AT_ONCE))
    return subprocess.Popen([sys.executable, "-c", CHILD, *values], stderr=subprocess.PIPE, **pipes)  # type: ignore[call-overload,no-any-return]


def baseline(rate: float, seconds: float, width: int) -> None:
    with child(rate, seconds, width, stdout=subprocess.PIPE) as writer:
        with subprocess.Popen(["cat"], stdin=writer.stdout, stdout=subprocess.DEVNULL):
            assert writer.stdout is not None
            writer.stdout.close()
        assert writer.stderr is not None
        print(told(writer.stderr.read(), "cat to nowhere", width), flush=True)


def told(report: bytes, case: str, width: int) -> str:
    written, _, took, longest = map(float, report.split())
    return (
        f"{case}, lines of {width} bytes: the child wrote {written / MB:.0f} MB in {took:.1f} s "
        f"({written / MB / took:.0f} MB/s), its longest write took {longest * 1000:.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=100.0, help="MB/s")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--width", type=int, default=100, help="bytes of a line")
    parser.add_argument("--case", choices=["folder", "stalled"], help="only this one, in this process")
    given = parser.parse_args()
    # In one case uploads are meant to fail.
    logging.disable()
    if given.case:
        flood(given.rate, given.seconds, given.width, stalled=given.case == "stalled")
        return
    baseline(given.rate, given.seconds, given.width)
    for case in ("folder", "stalled"):
        arguments = [f"--rate={given.rate}", f"--seconds={given.seconds}", f"--width={given.width}", f"--case={case}"]
        subprocess.run([sys.executable, __file__, *arguments], check=True)


if __name__ == "__main__":
    main()
