"""Reading the command's pipes."""

import os
import threading
import time

from bastion.adapters.system_clock import SystemClock
from bastion.agent.logs import pump
from bastion.agent.logs.lines import LineCutter, LogRecord, text_of
from bastion.agent.logs.pump import LogPump
from tests.support.waiting import until


class Pipes:
    """A pump on two pipes that the test writes."""

    def __init__(self) -> None:
        clock = SystemClock()
        read_out, self.out = os.pipe()
        read_err, self.err = os.pipe()
        self.records: list[LogRecord] = []
        self.done = threading.Event()
        self.pump = LogPump(
            {"stdout": read_out, "stderr": read_err},
            cutter=LineCutter(),
            put=self.records.extend,
            clock=clock,
            on_done=self.done.set,
        )
        self.pump.start()

    def lines(self) -> list[bytes]:
        return [line.split(b" ", 1)[1] for line in b"".join(map(text_of, self.records)).splitlines()]


def test_both_streams_are_read_to_their_ends():
    pipes = Pipes()
    os.write(pipes.out, b"a\nb\n")
    os.close(pipes.out)
    os.write(pipes.err, b"c")
    os.close(pipes.err)
    assert pipes.done.wait(20.0)
    assert sorted(pipes.lines()) == [b"stderr P c", b"stdout F a", b"stdout F b"]


def test_a_note_of_the_agents_stands_among_the_output_as_long_as_that_is_read():
    pipes = Pipes()
    os.write(pipes.out, b"before\n")
    until(lambda: pipes.lines() == [b"stdout F before"])
    assert pipes.pump.note("something\nhappened")
    until(lambda: len(pipes.lines()) == 2)
    os.write(pipes.out, b"after\n")
    os.close(pipes.out)
    os.close(pipes.err)
    assert pipes.done.wait(20.0)
    assert pipes.lines() == [b"stdout F before", b"stderr F bastion: something happened", b"stdout F after"]
    assert not pipes.pump.note("too late")
    assert len(pipes.lines()) == 3


def test_a_pipe_that_somebody_holds_open_does_not_hold_the_pump(monkeypatch):
    monkeypatch.setattr(pump, "LINGER_SECONDS", 0.05)
    pipes = Pipes()
    os.write(pipes.out, b"last words\nand more")
    pipes.pump.finish()
    assert pipes.done.wait(20.0)
    assert pipes.lines() == [b"stdout F last words", b"stdout P and more"]
    os.close(pipes.out)
    os.close(pipes.err)


def test_somebody_who_writes_for_ever_does_not_hold_the_pump_and_the_log_says_that_output_is_missing(monkeypatch):
    # A writer that has no turn for a moment does not end it: what it has written does.
    monkeypatch.setattr(pump, "LINGER_SECONDS", 3600.0)
    monkeypatch.setattr(pump, "DRAIN_MAX_BYTES", 100_000)
    pipes = Pipes()

    def write_for_ever() -> None:
        try:
            while True:
                os.write(pipes.out, b"x" * 4095 + b"\n")
        except BrokenPipeError:
            os.close(pipes.out)

    writer = threading.Thread(target=write_for_ever, daemon=True)
    writer.start()
    pipes.pump.finish()
    assert pipes.done.wait(20.0)
    writer.join(20.0)
    assert pipes.lines()[-1].startswith(b"gap F an unknown number of bytes")
    os.close(pipes.err)


def test_a_prompt_without_a_newline_shows_while_the_command_waits():
    pipes = Pipes()
    os.write(pipes.out, b"continue? ")
    deadline = time.monotonic() + 20.0
    while not (shown := pipes.lines()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert shown == [b"stdout P continue? "]
    os.close(pipes.out)
    os.close(pipes.err)
    assert pipes.done.wait(20.0)
