"""Behaves as the storage proxy does towards the worker, and as badly as its `GCS_PROXY_STAND_IN` asks.

`ready`: it serves. `never`: it does not. A number: it ends with that at once, or after that many starts serves
(`75x2`). `once`: it serves at its first
start only. `crash`: it serves for a moment and ends with 3. It notes each start in `starts` of its state folder,
and who it is in `pid`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

state = Path(os.environ["GCS_PROXY_STATE_PATH"])
certificate = Path(os.environ["PROXY_CERT_PATH"]) / "mitmproxy-ca-cert.pem"
with (state / "starts").open("a") as file:
    file.write(json.dumps({"pid": os.getpid(), "env": dict(os.environ), "stale": certificate.exists()}) + "\n")
(state / "pid").write_text(str(os.getpid()))
starts = len((state / "starts").read_text().splitlines())


def end(*_: object) -> None:
    (state / "ended").write_text(str(os.getpid()))
    print("the stand-in ends", file=sys.stderr, flush=True)
    os._exit(0)


signal.signal(signal.SIGINT, end)
signal.signal(signal.SIGTERM, lambda *_: os._exit(15))
asked, _, times = os.environ["GCS_PROXY_STAND_IN"].partition("x")
if asked.isdigit() and (not times or starts <= int(times)):
    print(f"the stand-in cannot begin, {starts}", file=sys.stderr)
    sys.exit(int(asked))
if asked == "once" and starts > 1:
    sys.exit(1)
if asked != "never":
    print(f"the stand-in serves at {os.environ['GCS_PROXY_LISTEN']}", file=sys.stderr, flush=True)
    certificate.write_text("a certificate")
if asked == "crash":
    time.sleep(0.05)
    sys.exit(3)
while True:
    signal.pause()
