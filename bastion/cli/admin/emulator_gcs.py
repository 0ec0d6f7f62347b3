"""`bastion emulator gcs`: Cloud Storage on this machine, in the foreground.

Layer: cli. What there is to know of the endpoint is in `bastion.emulators.gcs`; this is what a user sees of it.
"""

from __future__ import annotations

from pathlib import Path

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.target import bastion_home
from bastion.core.errors import Refused

_PORT_MAX = 65535


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "dir",
        None,
        "The folder whose direct subfolders are the buckets (default: $BASTION_HOME/buckets).",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "port",
        0,
        "HTTP port on 127.0.0.1; 0: the last one if it is free, else any.",
        0,
        _PORT_MAX,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "https_port",
        None,
        "Serve HTTPS on this port, too, with a certificate of its own; 0: the last one if it is free, else any.",
        0,
        _PORT_MAX,
        flag_values=values,
    )
    flags.DEFINE_multi_string("bucket", [], "Make this bucket if it is missing; repeatable.", flag_values=values)
    flags.DEFINE_multi_string(
        "fault",
        [],
        "Break requests: 408, 429, 500, 503, lost-reply, reset, reset-body, stall or slow, then any of method=, path= "
        "(a regular expression), percent=, nth=3-5, times=, seconds= and then=drop (stall), rate= (slow), after= "
        "(reset-body), with commas; repeatable.",
        flag_values=values,
    )
    flags.DEFINE_integer("fault_seed", 0, "Decides which requests a fault's percents hit.", flag_values=values)
    flags.DEFINE_float(
        "writes_per_object_second",
        0.0,
        "Answer 429 to more writes of one object in a second; the real service takes one. 0: any number.",
        0.0,
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "allowed_host",
        [],
        "Answer requests for this host name, too, for clients that reach the endpoint under a name of your own; "
        "repeatable.",
        flag_values=values,
    )
    flags.DEFINE_bool("fsync", False, "What was acknowledged survives a power cut; slower.", flag_values=values)


def _run(call: Invocation) -> int:
    from bastion.emulators.gcs.address import locate
    from bastion.emulators.gcs.fault_rules import parse_flag
    from bastion.emulators.gcs.faults import Faults
    from bastion.emulators.gcs.server import StorageEndpoint
    from bastion.emulators.gcs.serving import serve
    from bastion.emulators.state_folder import EmulatorRunning

    given = call.flags
    endpoint = StorageEndpoint(
        Path(given.dir).expanduser() if given.dir else bastion_home() / "buckets",
        port=given.port,
        https_port=given.https_port,
        buckets=given.bucket,
        faults=Faults([parse_flag(text) for text in given.fault], seed=given.fault_seed),
        writes_per_object_second=given.writes_per_object_second,
        fsync=given.fsync,
        allowed_hosts=given.allowed_host,
    )
    try:
        serve(endpoint, say=lambda line: print(line, flush=True))
    except EmulatorRunning as error:
        running = locate(endpoint.folder)
        if running is None:  # it is just being started, or ended
            raise
        raise EmulatorRunning(
            f"the buckets in {endpoint.folder} are served already, by process {running.process.pid}; use it (export "
            f"STORAGE_EMULATOR_HOST={running.url}), end it, or choose another folder with --dir"
        ) from error
    except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise Refused(
            f"{endpoint.folder} cannot hold buckets: {error.filename}: {error.strerror}; choose a folder of yours "
            "with --dir"
        ) from error
    return 0


GCS = Command(
    summary="Serves the Cloud Storage API over folders on this machine, in the foreground until SIGTERM or Ctrl-C.",
    usage="[--dir=DIR] [--port=N] [--https_port=N] [--bucket=NAME ...] [--fault=FAULT ...]",
    details=(
        "For google-cloud-storage, gcsfs, tensorstore and gsutil without a cloud account: generations, preconditions, "
        "checksums, resumable uploads, listings, compose, batches. It prints how to point them at it. Objects are "
        "plain files in the bucket's folder, and a file that is copied there is an object.\n\n"
        "It listens on 127.0.0.1 and answers processes of this user and of root only, and no web page. Faults can be "
        "changed while it runs: GET, PUT (a JSON list) and DELETE of /_emulator/faults."
    ),
    examples=(
        "bastion emulator gcs --bucket=team",
        "bastion emulator gcs --dir=/tmp/buckets --port=9000 --fault=503,method=POST,percent=5 --fault_seed=1",
    ),
    takes_target=False,
    define=_define,
    run=_run,
)
