"""Several processes behind one address, because one interpreter uses about one processor.

The first process accepts every connection and hands it, unread, to the least busy of the others, which fork from it
before it has threads. Invariants:

* If a process ends unexpectedly, all end, and the starter restarts the proxy. If the first one ends, the kernel kills
  the others.
* Only the first holds the address: it is free as soon as that process has ended.
* None serves before all can; the first one raises the errors of all.
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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

from bastion import processes
from bastion.core.errors import BastionError
from bastion.proxy.serving.hand_over import Inbox
from bastion.proxy.serving.siblings import Siblings
from bastion.proxy.serving.workload import Workload, WorkloadCounter

_log = logging.getLogger(__name__)

_FORK = multiprocessing.get_context("fork")
# Retrying at once would fail in a busy loop.
_PAUSE_SECONDS = 0.05
# The time that the others need to end after the grace period.
_END_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a serving process gets from the first: inboxes for clients, and for single requests from its siblings."""

    clients: Inbox
    requests: Inbox
    siblings: Siblings
    workload: WorkloadCounter


# Starts serving; returns a function that stops it with a grace period in seconds.
Serve = Callable[[Seat], Callable[[float], None]]


@dataclass(slots=True, kw_only=True)
class _Process:
    number: int
    clients: Inbox
    process: multiprocessing.process.BaseProcess
    # Reports readiness or an error, and receives the order to end.
    control: Connection


class Prefork:
    """The first process. Call its methods in the main thread, before starting threads.

    `serve` runs in each of `count` processes. Raises BastionError if system limits do not allow them.
    """

    def __init__(self, count: int, serve: Serve) -> None:
        self._serve = serve
        self._count = count
        # Least recently used first.
        self._processes: list[_Process] = []
        self._ended = False
        with within_limits(count):
            self._workload = Workload(count)
            # A signal wakes the one thread wherever it waits.
            self._woken, self._waker = socket.socketpair()
            for end in (self._woken, self._waker):
                end.setblocking(False)
            self._selector = selectors.DefaultSelector()
            self._selector.register(self._woken, selectors.EVENT_READ)

    def start(self) -> bool:
        """Wait until all serve; False if a signal asked to end. Raises BastionError if one fails or ends."""
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, self._end)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        with within_limits(self._count):
            inboxes = [(Inbox(), Inbox()) for _ in range(self._count)]
            requests = [inbox for _, inbox in inboxes]
            for number, (clients, own_requests) in enumerate(inboxes):
                seat = Seat(
                    clients=clients,
                    requests=own_requests,
                    siblings=Siblings(number, requests),
                    workload=self._workload.counter(number),
                )
                self._fork(number, seat)
            for process in self._processes:
                self._selector.register(process.control, selectors.EVENT_READ, process)
        waiting = {process.number for process in self._processes}
        while waiting and not self._ended:
            for process in self._heard():
                self._check_ready(process)
                waiting.discard(process.number)
        return not self._ended

    def distribute(self, listener: socket.socket) -> None:
        """Hand out connections until SIGTERM or SIGINT. Raises BastionError if a process ended unexpectedly."""
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        while not self._ended:
            if ended := self._heard():
                raise self._unasked_end(ended)
            self._accept(listener)
        _log.info("ending")

    def close(self, grace_seconds: float) -> None:
        """End all processes."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.control.send(grace_seconds)
        deadline = time.monotonic() + (grace_seconds + _END_SECONDS if grace_seconds else 0.0)
        for process in self._processes:
            process.process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            process.process.kill()
            process.process.join()
        signal.set_wakeup_fd(-1)

    def _end(self, _number: int, _frame: object) -> None:
        self._ended = True

    def _fork(self, number: int, seat: Seat) -> None:
        ours, theirs = _FORK.Pipe()
        arguments = (seat, theirs, ours, os.getpid())
        process = _FORK.Process(target=self._run, args=arguments, name=f"proxy-{number}", daemon=True)
        process.start()
        theirs.close()
        self._processes.append(_Process(number=number, clients=seat.clients, process=process, control=ours))

    def _heard(self) -> list[_Process]:
        """Wait for an event; return the processes that reported something or ended."""
        return [key.data for key, _ in self._selector.select() if key.data is not None]

    def _check_ready(self, process: _Process) -> None:
        """Raise BastionError if the process cannot serve."""
        try:
            problem = process.control.recv()
        except (EOFError, OSError):
            raise self._unasked_end([process]) from None
        if problem is not None:
            raise problem

    def _is_one_gone(self) -> bool:
        return any(process.control.poll() for process in self._processes)

    def _unasked_end(self, ended: Iterable[_Process]) -> BastionError:
        """Log, and return, the error for a process that ended unexpectedly."""
        gone = ["a process of the proxy ended unexpectedly; stopping all"]
        for process in ended:
            # Its files close before it ends, on a busy machine long before.
            process.process.join(_END_SECONDS)
            if process.process.exitcode is not None:
                # The kernel's log gives this id when it kills a process for lack of memory.
                pid, code = process.process.pid, process.process.exitcode
                gone.append(f"process {pid} of the proxy ended unexpectedly ({code}); stopping all")
        _log.error("%s", gone[-1])
        return BastionError(gone[-1])

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            _log.warning("could not accept a connection: %s", error)
            time.sleep(_PAUSE_SECONDS)
            return
        with connection:
            while not self._given(connection) and not self._ended and not self._is_one_gone():
                time.sleep(_PAUSE_SECONDS)

    def _given(self, connection: socket.socket) -> bool:
        """Hand a connection to the least busy process, among equals the least recently used; False if none takes it.

        The order matters for connections that arrive together, before they count as work.
        """
        for process in sorted(self._processes, key=lambda each: self._workload.at_hand(each.number)):
            try:
                given = process.clients.give(connection)
            except OSError as error:
                _log.warning("process %s of the proxy does not accept a connection: %s", process.process.pid, error)
                continue
            if given:
                self._processes.remove(process)
                self._processes.append(process)
                return True
        return False

    # -- in the serving processes
    # ------------------------------------------------------------------------------------------

    def _run(self, seat: Seat, control: Connection, others: Connection, first: int) -> None:
        processes.end_with_parent(first)
        others.close()
        for process in self._processes:
            process.control.close()
        signal.set_wakeup_fd(-1)
        for ending in (signal.SIGTERM, signal.SIGINT):
            # A terminal sends SIGINT to all; the first process forwards it.
            signal.signal(ending, signal.SIG_IGN)
        close, problem = None, None
        try:
            close = self._serve(seat)
        except BastionError as error:
            problem = error
        try:
            control.send(problem)
            grace_seconds = control.recv() if problem is None else 0.0
        except (EOFError, OSError):
            # The first process has ended; the kernel kills this one a moment later.
            os._exit(1)
        if close is not None:
            close(grace_seconds)


@contextlib.contextmanager
def within_limits(count: int) -> Iterator[None]:
    """Explain errors of missing processes, threads and sockets in a BastionError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BastionError(
            f"cannot start {count} processes of the proxy ({why}); raise the limits of open files and "
            "processes (ulimit -n, ulimit -u), or lower GCS_PROXY_PROCESSES"
        ) from error
