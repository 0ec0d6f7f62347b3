"""Environment variables that every process of an emulated host or pod has."""

# The environment variable that marks every process of one host or pod; `bastion.processes.end_marked` finds them by it.
MARKER = "BASTION_VM"
# Marks everything of a local bastion; inherited, so that its end also finds hosts without an emulator.
HOME_MARKER = "BASTION_LOCAL_HOME"
# What a host inherits from the emulator's environment: that marker, and the address of this machine's Cloud Storage (a
# real VM has a name server).
INHERITED = (HOME_MARKER, "STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL")
