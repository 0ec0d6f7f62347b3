"""`bastion emulator gcs`: Cloud Storage on this machine (`bastion.emulators.gcs`), in the foreground."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.core.errors import Refused
from bastion.user_config.user_file import bastion_home

_PORT_MAX = 65535


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "dir",
        None,
        "The folder whose subfolders are the buckets (default: $BASTION_HOME/buckets).",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "port",
        0,
        "HTTP port on 127.0.0.1; 0: the previous one if it is free, else any.",
        0,
        _PORT_MAX,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "https_port",
        None,
        "Also serve HTTPS on this port, with its own certificate; 0: the previous one if it is free, else any.",
        0,
        _PORT_MAX,
        flag_values=values,
    )
    flags.DEFINE_multi_string("bucket", [], "Create this bucket if it is missing; repeatable.", flag_values=values)
    flags.DEFINE_multi_string(
        "fault",
        [],
        "Make requests fail: 408, 429, 500, 503, lost-reply, reset, reset-body, stall or slow, followed by any of "
        "method=, path= (a regular expression), percent=, nth=3-5, times=, seconds= and then=drop (stall), rate= "
        "(slow), after= (reset-body), separated by commas; repeatable.",
        flag_values=values,
    )
    flags.DEFINE_integer("fault_seed", 0, "Random seed of the faults with percent=.", flag_values=values)
    flags.DEFINE_float(
        "writes_per_object_second",
        0.0,
        "Answer 429 to more writes of one object per second; the real service allows one. 0: no limit.",
        0.0,
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "allowed_host",
        [],
        "Also answer requests for this host name, for clients that reach the endpoint under another name; repeatable.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "identities",
        None,
        "Enforce the policies of buckets and managed folders. This TOML file says who has which access token "
        "(default: everybody may do everything).",
        flag_values=values,
    )
    flags.DEFINE_bool("fsync", False, "Sync each write to disk before acknowledging it; slower.", flag_values=values)


def _run(call: Invocation) -> int:
    from bastion.emulators.gcs.address import locate
    from bastion.emulators.gcs.fault_rules import parse_flag
    from bastion.emulators.gcs.faults import Faults
    from bastion.emulators.gcs.iam import identities
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
        identities=identities.read(Path(given.identities).expanduser()) if given.identities else None,
    )
    try:
        serve(endpoint, say=lambda line: print(line, flush=True))
    except EmulatorRunning as error:
        running = locate(endpoint.folder)
        if running is None:  # it is starting or stopping
            raise
        raise EmulatorRunning(
            f"process {running.process.pid} already serves the buckets in {endpoint.folder}; use it (export "
            f"STORAGE_EMULATOR_HOST={running.url}), stop it, or choose another folder with --dir"
        ) from error
    except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise Refused(
            f"{endpoint.folder} cannot hold buckets: {error.filename}: {error.strerror}; choose another folder "
            "with --dir"
        ) from error
    return 0


GCS = Command(
    summary="Serves the Cloud Storage API from folders on this machine, in the foreground until SIGTERM or Ctrl-C.",
    usage="[--dir=DIR] [--port=N] [--https_port=N] [--bucket=NAME ...] [--fault=FAULT ...] [--identities=FILE]",
    details=(
        "For google-cloud-storage, gcsfs, tensorstore and gsutil without a cloud account: generations, preconditions, "
        "checksums, resumable uploads, listings, compose, batches. On start it prints how to configure them. Objects "
        "are plain files in the bucket's folder; a file that you copy there is an object.\n\n"
        "It listens on 127.0.0.1 and answers only processes of this user and root, and no web page. To change the "
        "faults while it runs, use GET, PUT (a JSON list) and DELETE of /_emulator/faults."
    ),
    examples=(
        "bastion emulator gcs --bucket=team",
        "bastion emulator gcs --dir=/tmp/buckets --port=9000 --fault=503,method=POST,percent=5 --fault_seed=1",
    ),
    takes_target=False,
    define=_define,
    run=_run,
)
