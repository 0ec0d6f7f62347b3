"""Several processes serve one address, because one interpreter uses one processor and not much more.

Layer: proxy. The process that was started accepts every connection and hands it to the one with the least to do; it
reads none of them. The others fork from it before there is a thread, and share what was loaded until then. Invariants:

* They live and die together: where one ends unasked, all end, and whoever started the proxy starts it again.
* Only the first holds the address, so it is free as soon as that process is gone.
* None serves before all can: what one of them finds wrong, the first raises.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from bastion.core.errors import BastionError
from bastion.proxy.hand_over import Inbox
from bastion.proxy.siblings import Siblings
from bastion.proxy.work import Work, WorkCounter

_log = logging.getLogger(__name__)

_FORK = multiprocessing.get_context("fork")
# Where connections cannot be accepted, trying again at once would fail at full speed.
_PAUSE_SECONDS = 0.05
# After the grace that they give their requests, the others need a moment to end.
_END_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What one of the processes that serve has from the first one.

    Attributes:
        clients: Connections of clients.
        requests: Connections with a request from another process, one each.
    """

    clients: Inbox
    requests: Inbox
    siblings: Siblings
    work: WorkCounter


# Begins to serve, and returns what ends that, giving requests at hand so many seconds.
Serve = Callable[[Seat], Callable[[float], None]]


@dataclass(slots=True, kw_only=True)
class _Process:
    number: int
    clients: Inbox
    process: multiprocessing.process.BaseProcess
    # Tells when it serves, or why it cannot, and is told when to end.
    control: Connection
    given: int = 0


class Prefork:
    """The first process; its methods are called in the main thread, before there is another one.

    Args:
        count: How many processes serve.
        serve: What each of them does.
    """

    def __init__(self, count: int, serve: Serve) -> None:
        self._serve = serve
        self._count = count
        self._work = Work(count)
        self._processes: list[_Process] = []
        self._ended = False
        # Signals wake the one thread wherever it waits.
        self._woken, waker = socket.socketpair()
        for end in (self._woken, waker):
            end.setblocking(False)
        self._waker = waker

    def start(self) -> bool:
        """Starts all and waits until they serve; False: a signal to end came first.

        Raises:
            BastionError: what one of them raised.
        """
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, self._end)
        signal.set_wakeup_fd(self._waker.fileno())
        inboxes = [(Inbox(), Inbox()) for _ in range(self._count)]
        requests = [inbox for _, inbox in inboxes]
        for number, (clients, own_requests) in enumerate(inboxes):
            seat = Seat(
                clients=clients,
                requests=own_requests,
                siblings=Siblings(number, requests),
                work=self._work.counter(number),
            )
            ours, theirs = _FORK.Pipe()
            process = _FORK.Process(target=self._run, args=(seat, theirs, ours), name=f"proxy-{number}", daemon=True)
            process.start()
            theirs.close()
            self._processes.append(_Process(number=number, clients=clients, process=process, control=ours))
        return all(map(self._await_ready, self._processes))

    def distribute(self, listener: socket.socket) -> int:
        """Hands out connections until SIGTERM or SIGINT; returns the exit code."""
        listener.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            for process in self._processes:
                selector.register(process.control, selectors.EVENT_READ)
            while not self._ended:
                for key, _ in selector.select():
                    if isinstance(key.fileobj, Connection):
                        return self._explain_end()
                    if key.fileobj is listener:
                        self._accept(listener)
        _log.info("ending")
        return 0

    def close(self, grace_seconds: float) -> None:
        """Ends all, giving requests at hand some time."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.control.send(grace_seconds)
        deadline = time.monotonic() + grace_seconds + _END_SECONDS
        for process in self._processes:
            process.process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            process.process.kill()
            process.process.join()

    def _end(self, _number: int, _frame: object) -> None:
        self._ended = True

    def _await_ready(self, process: _Process) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(process.control, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not process.control.poll():
                if self._ended:
                    return False
                selector.select()
        try:
            problem = process.control.recv()
        except EOFError:
            raise BastionError("a process of the proxy could not start; its log says why") from None
        if problem is not None:
            raise problem
        return True

    def _is_one_gone(self) -> bool:
        return any(process.control.poll() for process in self._processes)

    def _explain_end(self) -> int:
        """The exit code, once one is gone."""
        for process in self._processes:
            process.process.join(_PAUSE_SECONDS)
            if process.process.exitcode is not None:
                code = process.process.exitcode
                _log.error("process %d of the proxy ended unasked (%d), so all end", process.number, code)
        return 1

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            _log.warning("no connection could be accepted: %s", error)
            time.sleep(_PAUSE_SECONDS)
            return
        with connection:
            while not self._given(connection) and not self._ended and not self._is_one_gone():
                time.sleep(_PAUSE_SECONDS)

    def _given(self, connection: socket.socket) -> bool:
        """Whether somebody has taken it; whoever has the least to do is asked first."""

        def load(process: _Process) -> tuple[int, int]:
            return self._work.at_hand(process.number), process.given

        for process in sorted(self._processes, key=load):
            with contextlib.suppress(OSError):
                if process.clients.give(connection):
                    process.given += 1
                    return True
        return False

    # -- in the processes that serve -----------------------------------------------------------------------------------

    def _run(self, seat: Seat, control: Connection, others: Connection) -> None:
        others.close()
        for process in self._processes:
            process.control.close()
        signal.set_wakeup_fd(-1)
        for ending in (signal.SIGTERM, signal.SIGINT):
            # A terminal sends them to all; the first one tells us.
            signal.signal(ending, signal.SIG_IGN)
        try:
            try:
                close = self._serve(seat)
            except BastionError as error:
                control.send(error)
                return
            control.send(None)
            grace_seconds = control.recv()
        except (EOFError, OSError):
            # The first one is gone: nobody would know of us, and the next proxy may begin at once.
            os._exit(1)
        close(grace_seconds)
