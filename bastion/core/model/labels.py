"""Labels of jobs: `KEY=VALUE` pairs of their users, for filters and for the objects that run the job.

They have the form of Kubernetes labels without a prefix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bastion.core import limits

_KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_FORM = "up to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends"
_SHOWN_CHARS = 30

RESERVED_PREFIX = "bastion-"
# Without a prefix; the Job controller of Kubernetes puts them on pods.
RESERVED = frozenset({"job-name", "controller-uid"})


def form_problem(key: str, value: str) -> str:
    """What is wrong with the form of a label; empty if nothing is."""
    if not _KEY.fullmatch(key):
        return f"{_shown(key)} is not a valid label key; use {_FORM}"
    if not _VALUE.fullmatch(value):
        return f"{_shown(value)} is not a valid value of label {key}; use {_FORM}"
    return ""


def _reserved_problem(key: str) -> str:
    if key in RESERVED or key.startswith(RESERVED_PREFIX):
        setter = "Kubernetes" if key in RESERVED else "Bastion"
        return f"{_shown(key)} is a label that {setter} sets itself; choose another key"
    return ""


def check(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return valid labels. Raises ValueError, which says what is wrong with the first bad one."""
    if len(labels) > limits.LABELS_MAX:
        raise ValueError(f"has {len(labels)} labels; the maximum is {limits.LABELS_MAX}")
    for key, value in labels.items():
        problem = form_problem(key, value) or _reserved_problem(key)
        if problem:
            raise ValueError(problem)
    size = sum(map(len, (*labels, *labels.values())))
    if size > limits.LABELS_MAX_CHARS:
        raise ValueError(f"keys and values have {size} characters together; the maximum is {limits.LABELS_MAX_CHARS}")
    return labels


def match(labels: Mapping[str, str], wanted: Mapping[str, str | None]) -> bool:
    """Whether a job with these labels is wanted; None accepts any value."""
    return all(key in labels and value in (None, labels[key]) for key, value in wanted.items())


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_CHARS] + "..." * (len(text) > _SHOWN_CHARS))
