"""A plain TLS relay in its own process, the baseline of `bench/proxy.py`: copies bytes between two TLS connections.

It costs what any intercepting proxy in this language costs before it does anything. Like the proxy, it has a thread per
connection and a buffer of 256 KiB per direction.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import socket
import ssl
import sys
import threading
from pathlib import Path

from bastion.net.tls import server_context

BUFFER_BYTES = 256 * 1024


def fill(source: ssl.SSLSocket, memory: memoryview) -> int:
    """Return how many bytes arrived; 0: the end; -1: none for now."""
    filled = 0
    while filled < len(memory):
        try:
            count = source.recv_into(memory[filled:])
        except (ssl.SSLWantReadError, TimeoutError):
            return filled or -1
        if not count:
            break
        filled += count
    return filled


def relay(client: ssl.SSLSocket, server: ssl.SSLSocket) -> None:
    """Copy until one side ends."""
    memory = memoryview(bytearray(BUFFER_BYTES))
    ends = {client.fileno(): (client, server), server.fileno(): (server, client)}
    poll = select.poll()
    for descriptor in ends:
        poll.register(descriptor, select.POLLIN)
    ready = list(ends)
    while True:
        for descriptor in ready:
            source, sink = ends[descriptor]
            source.settimeout(0.0)
            while (count := fill(source, memory)) > 0:
                sink.settimeout(60.0)
                sink.sendall(memory[:count])
                sink.settimeout(0.0)
            if count == 0:
                return
        ready = [descriptor for descriptor, _ in poll.poll()]


def serve(accepted: socket.socket, port: int, inner: ssl.SSLContext, outer: ssl.SSLContext) -> None:
    with contextlib.suppress(OSError):
        for plain in (accepted, upstream := socket.create_connection(("127.0.0.1", port))):
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with (
            inner.wrap_socket(accepted, server_side=True) as client,
            outer.wrap_socket(upstream, server_hostname="localhost") as server,
        ):
            relay(client, server)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("certificate", type=Path, help="PEM of the relay's certificate and key")
    parser.add_argument("authority", type=Path, help="PEM of who signed the server's")
    parser.add_argument("port", type=int, help="of the server on this machine")
    given = parser.parse_args()
    inner, outer = server_context(given.certificate), ssl.create_default_context(cafile=given.authority)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)

    def accept() -> None:
        while True:
            accepted, _ = listener.accept()
            threading.Thread(target=serve, args=(accepted, given.port, inner, outer), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
