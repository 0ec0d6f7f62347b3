"""Environment variables that every process of an emulated host or pod has."""

from collections.abc import Mapping

# The environment variable that marks every process of one host or pod; `bastion.processes.end_marked` finds them by it.
MARKER = "BASTION_VM"
# Marks everything of a local bastion; inherited, so that its end also finds hosts without an emulator.
HOME_MARKER = "BASTION_LOCAL_HOME"
_INHERITED = (HOME_MARKER, "STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL")
_S3_ENDPOINT = "AWS_ENDPOINT_URL"
_OF_S3 = (_S3_ENDPOINT, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION")


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """What a host inherits from the emulator's environment.

    That marker, and the address of this machine's Cloud Storage (a real VM has a name server) or of an S3 server, with
    the keys to it (a real pod has a role).
    """
    names = (*_INHERITED, *(_OF_S3 if _S3_ENDPOINT in environ else ()))
    return {name: environ[name] for name in names if name in environ}
