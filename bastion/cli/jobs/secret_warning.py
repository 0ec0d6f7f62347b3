"""The warning about secrets in the variables of a job, which everyone who reads the bucket can read."""

from __future__ import annotations

from collections.abc import Mapping

from bastion.cli.output import plain, say
from bastion.core import secret_signs
from bastion.core.model.job_spec import JobSpec

_ON_SLICE = "use --secret {name}=sm://PROJECT/SECRET, k8s:secret/NAME/KEY, file:PATH or env:NAME instead"
_ON_BASTION = "let the command fetch it by itself, or run on a slice with --secret"


def warn_of(spec: JobSpec) -> None:
    warn_of_secrets(spec.env_vars, instead=_ON_BASTION if spec.runner is None else _ON_SLICE, where="--env")


def warn_of_secrets(variables: Mapping[str, str], *, instead: str, where: str) -> None:
    """Name each variable that looks like a secret. `instead`: what to do, with `{name}`; `where`: how it was given."""
    for name, why in secret_signs.secret_variables(variables).items():
        advice = instead.replace("{name}", plain(name))
        say(f"bastion: {where} {plain(name)} looks like {why}; all who read the bucket can read it; {advice}")
