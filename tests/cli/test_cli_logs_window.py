"""`bastion logs`: prefixes and their colours, since when, the last lines, instants, and matching lines."""

from __future__ import annotations

import os
import pty
import sys
import time

import pytest

from bastion.cli.jobs.line_pattern import LinePattern
from bastion.cli.jobs.log_printer import LogPrinter
from bastion.client import LogPiece
from bastion.core.errors import Refused
from bastion.core.instants import to_rfc3339
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.scripted_hosts import runs_for
from tests.support.past_attempts import add_attempts


@pytest.fixture
def ended(bastion) -> str:
    """The uid of a job `job` on two hosts that has ended."""
    bastion.hosts.scripts["job"] = runs_for(1)
    uid = bastion.submit("job", instance_type="tpu-v4-16")
    bastion.run_until(lambda: bastion.result("job"))
    return uid


# -- prefixes ----------------------------------------------------------------------------------------------------------


def test_hosts_of_several_slices_are_told_apart_by_host_and_slice(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(1)
    uid = bastion.submit("job", instance_type="tpu-v4-16", num_replicas=2)
    bastion.run_until(lambda: bastion.result("job"))
    for worker in range(4):
        bastion.write_log("job", f"{uid}-1", worker, 1, f"stdout F {worker}", "gap F lost")
    done = run("logs", "job")
    assert done.out.splitlines() == ["[w00 1/2] 0", "[w01 1/2] 1", "[w02 2/2] 2", "[w03 2/2] 3"]
    assert "[w03 2/2] --- lost ---\n" in done.err
    assert run("logs", "job", "--worker=3").out == "3\n"


def test_prefixes_are_as_wide_as_the_largest_number(capfdbinary) -> None:
    printer = LogPrinter()
    printer.begin(1, 1024, 4)
    printer.show([LogPiece(worker=255, at="", stream="stdout", ends=True, text=b"x")])
    printer.show([LogPiece(worker=1023, at="", stream="stdout", ends=True, text=b"y")])
    assert capfdbinary.readouterr().out == b"[w0255 1/4] x\n[w1023 4/4] y\n"


def shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, *pieces: LogPiece) -> bytes:
    """What a printer writes to a terminal for a job on two hosts."""
    reader, writer = pty.openpty()
    try:
        with os.fdopen(writer, "w", encoding="utf-8") as terminal:
            monkeypatch.setattr(sys, "stdout", terminal)
            printer = LogPrinter()
            printer.begin(1, 2)
            printer.show(pieces)
            printer.finish()
            return os.read(reader, 65536)
    finally:
        os.close(reader)


def test_each_worker_has_one_colour_on_a_terminal(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    lines = [LogPiece(worker=n, at="", stream="stdout", ends=True, text=b"x") for n in (0, 1, 0)]
    first, second, third = shown_on_a_terminal(monkeypatch, *lines).splitlines()
    assert first == third == b"\x1b[0;36m[w00]\x1b[0m x"
    assert second == b"\x1b[0;33m[w01]\x1b[0m x"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_turned_off(monkeypatch, name: str, value: str) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(name, value)
    line = LogPiece(worker=1, at="", stream="stdout", ends=True, text=b"x")
    assert shown_on_a_terminal(monkeypatch, line) == b"[w01] x\r\n"


# -- since when --------------------------------------------------------------------------------------------------------


def test_since_shows_lines_from_an_instant_on_whatever_attempt_they_are_of(run, bastion, ended) -> None:
    now = bastion.clock.now()
    add_attempts(bastion, "job", [2])
    for attempt, begin in ((1, now - 7200), (2, now - 3600)):
        lines = "".join(f"{to_rfc3339(begin + 600 * n)} stdout F {attempt}/{n}\n" for n in range(6))
        bastion.run_keys.write_segment(bastion.store, "job", f"{ended}-{attempt}", 0, 1, lines.encode())
    assert run("logs", "job", "--worker=0", "--since=1200s").out == "2/4\n2/5\n"
    assert run("logs", "job", "--worker=0", "--since=20m").out == "2/4\n2/5\n"
    assert run("logs", "job", "--worker=0", f"--since={to_rfc3339(now - 3600)}").out.splitlines()[0] == "2/0"
    assert len(run("logs", "job", "--worker=0", "--since=3d").out.splitlines()) == 12
    done = run("logs", "job", "--since=1m")
    assert (done.code, done.out, done.err) == (
        0,
        "",
        "bastion: job has output, but no line matches\n",
    )


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--since=yesterday", "--since=yesterday is not a valid time; use 90s, 10m, 1h30m or 3d for a time ago"),
        ("--since=2026-01-02T03:04:05", "a time with its zone, like"),
        ("--since=-5m", "is not a valid time"),
        ("--since=9999-01-01T00:00:00Z", "is in the future; it is"),
        ("--since=0001-01-01T00:00:00+14:00", ""),
        ("--tail=-1", "--tail=-1"),
        ("--tail=1000001", "--tail=1000001"),
        ("--grep=(", "--grep=( is not a valid regular expression: missing )"),
        pytest.param(f"--grep={'a' * 1001}", "--grep is 1001 characters long; the maximum is 1000", id="long"),
        pytest.param(f"--grep={'(' * 900}", "is not a valid regular expression", id="deep"),
        ("--worker=w1", "is not a valid worker"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_in_a_line(run, ended, flag: str, message: str) -> None:
    done = run("logs", "job", flag)
    assert message in done.err
    assert (done.code == 64) == bool(message)
    assert len(done.err) < 400


# -- the last lines ----------------------------------------------------------------------------------------------------


def test_the_last_lines_are_counted_over_workers_and_attempts(run, bastion, ended) -> None:
    add_attempts(bastion, "job", [2, 3])
    for attempt in (1, 2, 3):
        for worker in (0, 1):
            for seq in (1, 2, 3):
                bastion.write_log("job", f"{ended}-{attempt}", worker, seq, f"stdout F {attempt}.{seq}")
    done = run("logs", "job", "--tail=3")
    assert done.out == "[w01] 3.2\n[w00] 3.3\n[w01] 3.3\n"
    assert done.err == "--- attempt 3 ---\n"
    done = run("logs", "job", "--tail=8", "--worker=1")
    assert done.out == "1.2\n1.3\n2.1\n2.2\n2.3\n3.1\n3.2\n3.3\n"
    assert done.err.splitlines() == ["--- attempt 1 ---", "--- attempt 2 ---", "--- attempt 3 ---"]
    assert run("logs", "job", "--tail=1", "--attempt=2").out == "[w01] 2.3\n"
    assert len(run("logs", "job", "--tail=100").out.splitlines()) == 18
    assert run("logs", "job", "--tail=2", "--grep=^[12]").out == "[w00] 2.3\n[w01] 2.3\n"


def test_following_from_the_last_lines_shows_them_and_all_that_comes(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(12)
    bastion.submit("job", instance_type="tpu-v4-16")
    bastion.settle(3)
    attempt = bastion.attempt("job")
    for seq in range(1, 31):
        for worker in (0, 1):
            bastion.write_log("job", attempt, worker, seq, f"stdout F {seq}")
    more = iter(range(31, 36))

    def write() -> None:
        seq = next(more, 0)
        for worker in (0, 1) if seq else ():
            bastion.write_log("job", attempt, worker, seq, f"stdout F {seq}")

    bastion.on_sleep.append(write)
    done = run("logs", "-f", "job", "--tail=4", code=0)
    expected = [f"[w0{worker}] {seq}" for seq in range(29, 36) for worker in (0, 1)]
    assert done.out.splitlines() == expected


def test_following_from_now_on_shows_only_what_comes(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(6)
    bastion.submit("job")
    bastion.settle(3)
    attempt = bastion.attempt("job")
    bastion.write_log("job", attempt, 0, 1, "stdout F old")
    acts = iter([lambda: bastion.write_log("job", attempt, 0, 2, "stdout F new")])
    bastion.on_sleep.append(lambda: next(acts, lambda: None)())
    assert run("logs", "-f", "job", "--tail=0").out == "new\n"


def test_an_outage_while_the_last_lines_are_followed_loses_and_repeats_nothing(run, bastion, monkeypatch) -> None:
    faulty = FaultyStore(bastion.store, seed=5, before=0.3)
    monkeypatch.setattr("bastion.cli.connect.open_root", lambda _url: faulty)
    bastion.hosts.scripts["job"] = runs_for(40)
    bastion.submit("job", instance_type="tpu-v4-16")
    bastion.settle(3)
    attempt = bastion.attempt("job")
    written = [0]

    def write() -> None:
        faulty.enabled = True
        if written[0] < 30:
            written[0] += 1
            for worker in (0, 1):
                bastion.write_log("job", attempt, worker, written[0], f"stdout F {written[0]}")

    for _ in range(10):
        write()
    faulty.enabled = False
    bastion.on_sleep.append(write)
    done = run("logs", "-f", "job", "--tail=6", code=0)
    assert len(faulty.failed) > 5
    lines = done.out.splitlines()
    for worker in (0, 1):
        own = [line.removeprefix(f"[w0{worker}] ") for line in lines if line.startswith(f"[w0{worker}]")]
        assert own == [str(n) for n in range(8, 31)]
    assert "the bucket does not answer; retrying" in done.err
    assert "the bucket answers again" in done.err


# -- instants, and matching lines --------------------------------------------------------------------------------------


def test_timestamps_stand_before_everything_else(run, bastion, ended) -> None:
    bastion.write_log("job", f"{ended}-1", 1, 1, "stdout P be", "stdout F gun", "stderr P no end")
    at = to_rfc3339(1001.0)
    done = run("logs", "job", "--timestamps")
    assert done.out == f"{at} [w01] begun\n"
    assert done.err == f"{at} [w01] no end\n"
    assert run("logs", "job", "--timestamps", "--worker=1").out == f"{at} begun\n"


def test_grep_shows_whole_lines_that_match_and_every_gap(run, bastion, ended) -> None:
    lines = ("stdout P loss=", "stdout F nan", "stdout F loss=0.1", "gap F 17 bytes", "stderr F Error: Zürich")
    bastion.write_log("job", f"{ended}-1", 0, 1, *lines)
    done = run("logs", "job", "--worker=0", "--grep=loss=nan|Z.rich$")
    assert done.out == "loss=nan\n"
    assert done.err == "--- 17 bytes ---\nError: Zürich\n"
    assert '"line": "loss=nan"' in run("logs", "job", "--grep=nan", "--output=json").out


def test_a_hostile_pattern_ends_with_an_error_soon(run, bastion, ended) -> None:
    bastion.write_log("job", f"{ended}-1", 0, 1, f"stdout F {'a' * 60}!")
    began = time.process_time()
    done = run("logs", "job", "--grep=(a+)+$", code=64)
    assert "--grep=(a+)+$ takes more than 1 s for one line of 61 characters; avoid nested repetitions" in done.err
    assert time.process_time() - began < 10


def test_a_pattern_that_once_took_too_long_does_not_disturb_what_comes_after() -> None:
    pattern = LinePattern("(a+)+$", cpu_seconds=0.05)
    for _ in range(3):
        with pytest.raises(Refused, match=r"takes more than 0\.05 s"):
            pattern(b"a" * 60 + b"!")
        assert pattern(b"aaa")
    assert not pattern(b"x" * 16 * 1024 + b"a")  # beyond what is searched
