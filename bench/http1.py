"""Measure what the HTTP server itself costs per request: `python bench/http1.py [--requests=20000]`.

The handler only reads the body and answers 100 bytes. The client is a raw socket in another process, with the heads of
a real client. Requests a second of one connection depend on both, so the server's CPU time counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import time

from bastion.net.http1 import Headers, HttpServer, Request, Response

ANSWER = b"x" * 100
HEADS = (
    b"Host: 127.0.0.1:9000\r\nUser-Agent: gcloud-python/3.1 gl-python/3.11 gax/2.1\r\nAccept-Encoding: gzip\r\n"
    b"Accept: */*\r\nConnection: keep-alive\r\nX-Goog-API-Client: gcloud-python/3.1 gccl-invocation-id/abc\r\n"
    b"Content-Type: application/json; charset=UTF-8\r\nAuthorization: Bearer abcdef\r\n"
)
REQUESTS = {
    "GET": b"GET /storage/v1/b/team/o/name?alt=media HTTP/1.1\r\n" + HEADS + b"\r\n",
    "PUT of 1 KiB": b"PUT /team/name HTTP/1.1\r\n" + HEADS + b"Content-Length: 1024\r\n\r\n" + b"b" * 1024,
}


def answer(request: Request) -> Response:
    request.body.read()
    return Response(status=200, headers=Headers([("Content-Type", "text/plain")]), body=ANSWER)


def ask(port: int, request: bytes, count: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            connection.sendall(request)
            received = connection.recv(65536)
            while not received.endswith(ANSWER):
                received += connection.recv(65536)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=20_000)
    count = parser.parse_args().requests
    server = HttpServer(answer)
    server.open()
    for name, request in REQUESTS.items():
        client = multiprocessing.get_context("spawn").Process(target=ask, args=(server.port, request, count))
        client.start()
        began, spent = time.perf_counter(), time.process_time()
        client.join()
        taken, spent = time.perf_counter() - began, time.process_time() - spent
        rate, cost = count / taken, spent / count * 1e6
        print(f"{name}: {rate:,.0f} requests/s on one connection, {cost:.0f} µs of the server each")
    server.close()


if __name__ == "__main__":
    main()
