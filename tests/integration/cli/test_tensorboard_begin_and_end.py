"""`bastion tensorboard` asks for its port before it copies anything, and leaves nothing when it is ended."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from bastion.cli.jobs.tensorboard import _ending_on_signals, _logdir, _require_free
from bastion.core.errors import Refused


def test_a_port_in_use_and_an_address_of_another_machine_are_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Refused) as refusal:
            _require_free("127.0.0.1", port)
    assert str(refusal.value) == (
        f"TensorBoard cannot listen on 127.0.0.1, port {port}: Address already in use; choose another --port or --host"
    )
    with pytest.raises(Refused, match="Cannot assign requested address"):
        _require_free("192.0.2.1", port)
    _require_free("127.0.0.1", port)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_closed_terminal_and_sigterm_leave_no_copies(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # the tests may run under nohup
    try:
        with pytest.raises(SystemExit) as end, _ending_on_signals(), _logdir(None) as folder:
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert end.value.code == 128 + number
    assert not folder.exists()


def test_nohup_is_heeded() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _ending_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
