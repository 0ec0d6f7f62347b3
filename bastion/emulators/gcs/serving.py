"""Run the endpoint until SIGTERM or SIGINT, for `python -m bastion.emulators.gcs` and `bastion emulator gcs`."""

from __future__ import annotations

import logging
import resource
import shlex
import signal
import sys
import threading
from collections.abc import Callable

from bastion.emulators.gcs.address import StorageAddress
from bastion.emulators.gcs.server import StorageEndpoint


def serve(endpoint: StorageEndpoint, *, say: Callable[[str], None]) -> None:
    """Open the endpoint, wait for the signal, close it. `say` gets the lines for the user."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: ended.set())
    # Connections and open objects take descriptors; the usual limit of 1024 is low.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    address = endpoint.open()
    try:
        say(f"serving the buckets in {endpoint.folder} to processes of this user, as {address.process.pid}\n")
        for line in instructions(address):
            say(line)
        # A stopped process (Ctrl-Z) may get the signal in another thread, which does not wake this one.
        while not ended.wait(1.0):
            pass
    finally:
        endpoint.close()


def instructions(address: StorageAddress) -> list[str]:
    """How to point clients at an endpoint, as commented shell lines."""
    lines = ["# bastion, google-cloud-storage, gcsfs and tensorstore:"]
    lines += [f"export {name}={value}" for name, value in address.environment.items()]
    # gcsfs asks for the bucket's type over gRPC in each call, and waits about a minute.
    lines += ["export GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT=false"]
    lines += [f"# or in Python: gcsfs.GCSFileSystem(token='anon', endpoint_url={address.url!r})"]
    if address.https_url:
        lines += [f"# over TLS: {address.https_url}, for clients that trust its authority:"]
        names = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "TENSORSTORE_CA_BUNDLE")
        lines += [f"#   export {name}={address.ca_file}" for name in names]
        host, _, port = address.https_url.removeprefix("https://").partition(":")
        lines += [
            f"# gsutil -o Credentials:gs_json_host={host} -o Credentials:gs_json_port={port} "
            f"-o Boto:ca_certificates_file={shlex.quote(address.ca_file)} ls"
        ]
    return lines
