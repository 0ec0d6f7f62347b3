"""A tunnel to another host: bytes both ways, untouched.

Invariants:

* Each direction holds one buffer; a slow reader slows its writer down.
* The end of one direction is passed on while the other continues. A reset is passed on as a reset, because an end could
  make truncated data look complete.
* A tunnel that is idle for `idle_seconds` ends.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Callable

from bastion.net.http1 import Channel, Disconnect

_BUFFER_BYTES = 128 * 1024
_RESET = struct.pack("@ii", 1, 0)


class Tunnel:
    """A tunnel with a connected far end; a `bastion.net.http1.Raw`. Raises OSError if it cannot connect."""

    def __init__(self, host: str, port: int, *, connect_seconds: float, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        try:
            self._far = socket.create_connection((host, port), connect_seconds)
        except UnicodeError as error:
            raise OSError(f"{host!r} is not a valid host name") from error

    def run(self, channel: Channel, /) -> None:
        near, far = channel.connection, self._far
        try:
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            near.settimeout(0.0)
            far.settimeout(0.0)
            _relay(near, far, unread=channel.unread, idle_seconds=self._idle_seconds, touch=channel.touch)
        except OSError:
            with contextlib.suppress(OSError):
                far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            raise Disconnect(reset=True) from None

    def close(self) -> None:
        self._far.close()


class _Direction:
    """One direction: data that was read from the source and not yet written to the sink."""

    def __init__(self, source: socket.socket, sink: socket.socket, begun: bytes = b"") -> None:
        self._source = source
        self._sink = sink
        self._memory = memoryview(bytearray(max(_BUFFER_BYTES, len(begun))))
        self._memory[: len(begun)] = begun
        self._held = self._memory[: len(begun)]
        self.open = True
        self.done = False

    @property
    def waits_to_write(self) -> bool:
        return bool(self._held)

    @property
    def waits_to_read(self) -> bool:
        return self.open and not self._held

    def step(self) -> None:
        """Read if nothing is held, then write. Raises OSError if an end is broken."""
        with contextlib.suppress(BlockingIOError):
            if self.waits_to_read:
                count = self._source.recv_into(self._memory)
                self._held = self._memory[:count]
                self.open = count > 0
            if self._held:
                self._held = self._held[self._sink.send(self._held) :]
        if not self.open and not self._held and not self.done:
            self.done = True
            self._sink.shutdown(socket.SHUT_WR)


class _End:
    """A socket and the two directions that meet there."""

    def __init__(self, end: socket.socket, *, reading: _Direction, writing: _Direction) -> None:
        self._end = end
        self._reading = reading
        self._writing = writing
        self._registered: int | None = None
        self._hung_up = False

    @property
    def _wanted(self) -> int:
        return select.POLLIN * self._reading.waits_to_read | select.POLLOUT * self._writing.waits_to_write

    def register(self, poll: select.poll) -> None:
        """Register what to wait for; if nothing, only a shutdown."""
        wanted = self._wanted or (None if self._hung_up else 0)
        if wanted == self._registered:
            return
        if wanted is None:
            # A closed end would wake the poll again and again while its data waits to be written.
            poll.unregister(self._end)
        else:
            poll.register(self._end, wanted)
        self._registered = wanted

    def step(self, event: int) -> None:
        """Do what has become possible. Raises OSError if an end is broken."""
        self._hung_up = self._hung_up or bool(event & select.POLLHUP)
        if event & select.POLLERR or (self._hung_up and not self._reading.open):
            # Nothing can be read or written there.
            raise ConnectionResetError
        if event & (select.POLLIN | select.POLLHUP):
            self._reading.step()
        if event & select.POLLOUT:
            self._writing.step()


def _relay(
    near: socket.socket, far: socket.socket, *, unread: bytes, idle_seconds: float, touch: Callable[[], None]
) -> None:
    """Relay until both directions have ended, or the tunnel was idle for too long. Raises OSError."""
    up, down = _Direction(near, far, unread), _Direction(far, near)
    near_end, far_end = _End(near, reading=up, writing=down), _End(far, reading=down, writing=up)
    ends = {near.fileno(): near_end, far.fileno(): far_end}
    poll = select.poll()
    while not (up.done and down.done):
        near_end.register(poll)
        far_end.register(poll)
        events = poll.poll(idle_seconds * 1000)
        if not events:
            raise TimeoutError
        touch()
        for descriptor, event in events:
            ends[descriptor].step(event)
