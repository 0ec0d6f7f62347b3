"""The command registry: each command's name, module and summary. Strings only: help and completion load no command."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from bastion.cli.command import Command


@dataclass(frozen=True, slots=True)
class Entry:
    """One command. Its name is one word, or a group and a word; `where` is `module:attribute` of its `Command`."""

    name: str
    where: str
    summary: str

    def load(self) -> Command:
        module, _, attribute = self.where.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, Command), self.where
        return command


ENTRIES = (
    Entry("launch", "bastion.cli.jobs.launch:LAUNCH", "run a command as a job"),
    Entry("submit", "bastion.cli.jobs.submit:SUBMIT", "submit a job spec from a file"),
    Entry("list", "bastion.cli.jobs.list:LIST", "show the jobs"),
    Entry("show", "bastion.cli.jobs.show:SHOW", "show one job on one screen"),
    Entry("logs", "bastion.cli.jobs.logs:LOGS", "show a job's output"),
    Entry("outputs", "bastion.cli.jobs.outputs:OUTPUTS", "list or fetch what a job has stored"),
    Entry("exec", "bastion.cli.jobs.exec:EXEC", "run a command or a shell on a job's host"),
    Entry("why", "bastion.cli.jobs.why:WHY", "show why a job waits, or what it is doing"),
    Entry("wait", "bastion.cli.jobs.wait:WAIT", "wait until jobs have ended"),
    Entry("tensorboard", "bastion.cli.jobs.tensorboard:TENSORBOARD", "show jobs' curves in TensorBoard"),
    Entry("history", "bastion.cli.jobs.history:HISTORY", "show what happened to a job"),
    Entry("audit", "bastion.cli.jobs.audit:AUDIT", "show who asked for what, and what came of it"),
    Entry("cancel", "bastion.cli.jobs.cancel:CANCEL", "cancel jobs"),
    Entry("hold", "bastion.cli.jobs.hold:HOLD", "keep jobs from starting"),
    Entry("release", "bastion.cli.jobs.hold:RELEASE", "let held jobs start"),
    Entry("requeue", "bastion.cli.jobs.hold:REQUEUE", "stop running jobs and queue them again"),
    Entry("edit", "bastion.cli.jobs.edit:EDIT", "change a job that waits or runs"),
    Entry("rerun", "bastion.cli.jobs.rerun:RERUN", "run a job again, the same or changed"),
    Entry("doctor", "bastion.cli.doctor.doctor:DOCTOR", "say what is wrong with a bastion, and what to do"),
    Entry("benchmark check", "bastion.cli.benchmark.check:CHECK", "show what a benchmark would run and cost"),
    Entry("benchmark run", "bastion.cli.benchmark.run:RUN", "run a benchmark, or go on with it"),
    Entry("benchmark status", "bastion.cli.benchmark.status:STATUS", "show how far a run is"),
    Entry("benchmark cancel", "bastion.cli.benchmark.cancel:CANCEL", "end a run; its tear-down follows"),
    Entry("benchmark report", "bastion.cli.benchmark.report:REPORT", "write a run's report"),
    Entry("benchmark compare", "bastion.cli.benchmark.compare:COMPARE", "show what two runs differ in"),
    Entry("benchmark noise", "bastion.cli.benchmark.noise:NOISE", "show what gate a benchmark can hold"),
    Entry("benchmark begin", "bastion.cli.benchmark.finisher:BEGIN", "what a run's last job runs first"),
    Entry("benchmark finish", "bastion.cli.benchmark.finisher:FINISH", "what a run's last job runs at the end"),
    Entry("quota check", "bastion.cli.quota.check:CHECK", "check a quota file"),
    Entry("quota diff", "bastion.cli.quota.diff:DIFF", "show what a quota file changes"),
    Entry("quota export", "bastion.cli.quota.export:EXPORT", "write a quota file as Kueue's objects"),
    Entry("quota show", "bastion.cli.quota.show:SHOW", "show the quota file in force"),
    Entry("quota upload", "bastion.cli.quota.upload:UPLOAD", "check and upload a quota file"),
    Entry("quota whatif", "bastion.cli.quota.whatif:WHATIF", "show whose waits a quota file would change"),
    Entry("simulate decide", "bastion.cli.simulate.decide:DECIDE", "show one decision about jobs from a file"),
    Entry("simulate replay", "bastion.cli.simulate.replay:REPLAY", "replay a trace of jobs through a policy"),
    Entry("simulate bench", "bastion.cli.simulate.bench:BENCH", "measure the scheduler on synthetic jobs"),
    Entry("instance-types", "bastion.cli.admin.instance_types:TYPES", "list the instance types"),
    Entry("local up", "bastion.cli.admin.local:UP", "start the bastion on this machine"),
    Entry("local down", "bastion.cli.admin.local:DOWN", "stop the bastion on this machine"),
    Entry("local status", "bastion.cli.admin.local:STATUS", "show the bastion on this machine"),
    Entry("daemon run", "bastion.cli.admin.daemon:RUN", "run a bastion's daemon"),
    Entry("daemon check-config", "bastion.cli.admin.daemon_check:CHECK_CONFIG", "check the operator settings"),
    Entry(
        "daemon agent-wheels",
        "bastion.cli.admin.daemon_wheels:AGENT_WHEELS",
        "download wheels for hosts with other Python versions",
    ),
    Entry("admin user", "bastion.cli.admin.user:USER", "add, remove or list who has an inbox"),
    Entry(
        "admin project-admin",
        "bastion.cli.admin.project_admin:PROJECT_ADMIN",
        "add, remove or list who may cancel the jobs of others",
    ),
    Entry("admin inbox", "bastion.cli.admin.inbox:INBOX", "change or show where jobs come from"),
    Entry(
        "kubernetes manifest",
        "bastion.cli.admin.kubernetes_manifest:MANIFEST",
        "print what runs a daemon inside a cluster",
    ),
    Entry("debug replay", "bastion.cli.admin.debug:REPLAY", "decide a recorded tick again"),
    Entry("debug diff", "bastion.cli.admin.debug:DIFF", "show what this version decides differently"),
    Entry("sweep", "bastion.cli.admin.sweep:SWEEP", "delete orphaned slices"),
    Entry("emulator gcs", "bastion.cli.admin.emulator_gcs:GCS", "serve Cloud Storage from folders on this machine"),
    Entry(
        "emulator kubernetes",
        "bastion.cli.admin.emulator_kubernetes:KUBERNETES",
        "serve a Kubernetes cluster from processes of this machine",
    ),
    Entry("emulator tpu", "bastion.cli.admin.emulator_tpu:TPU", "serve the Cloud TPU API on this machine"),
    Entry("proxy run", "bastion.cli.proxy.run:RUN", "run the encrypting storage proxy"),
    Entry("proxy doctor", "bastion.cli.proxy.doctor:DOCTOR", "check that storage clients reach a working proxy"),
    Entry("proxy rewrap", "bastion.cli.proxy.rewrap:REWRAP", "rewrap the keys of stored objects"),
    Entry("proxy decrypt", "bastion.cli.proxy.decrypt:DECRYPT", "decrypt an object without a proxy"),
    Entry("proxy keyring", "bastion.cli.proxy.keyring:KEYRING", "create and rotate keys in a file"),
    Entry("config set", "bastion.cli.admin.config:SET", "set a key of your config, or of a profile"),
    Entry("config list", "bastion.cli.admin.config:LIST", "list your profiles"),
    Entry("config activate", "bastion.cli.admin.config:ACTIVATE", "choose the profile to use"),
    Entry("config explain", "bastion.cli.admin.config:EXPLAIN", "show the settings in force, and who set them"),
    Entry("completion", "bastion.cli.admin.completion:COMPLETION", "print a shell's completion script"),
    Entry("version", "bastion.cli.admin.version:VERSION", "show the version"),
)

# The text of `bastion GROUP --help`.
GROUPS = {
    "benchmark": "Benchmarks: a matrix of jobs that ends by itself, its report, and comparisons of runs.",
    "quota": "Quota files: who may use which project, and each project's share of the pool.",
    "simulate": "The scheduler without a bastion: show one decision, replay a trace, measure.",
    "local": "The bastion on this machine: a daemon and emulated TPU slices; needs no cloud account.",
    "debug": "Recorded ticks of a daemon: show and compare their decisions.",
    "daemon": "The daemon: the one process that runs on a bastion's VM.",
    "admin": "Who may use a bastion, and how it knows who wrote what.",
    "kubernetes": "A bastion inside a Kubernetes cluster.",
    "emulator": "Emulated clouds on this machine, for trials and tests.",
    "proxy": "The storage proxy: encrypts what jobs store in a bucket.",
    "config": "Your config and its profiles: the defaults of your commands, in $BASTION_HOME/config.toml.",
}
