"""Conditions on `resource.name`."""

from __future__ import annotations

import pytest

from bastion.emulators.gcs.iam.conditions import NotSupported, compiled, extracted

LEASE = 'resource.name.endsWith("/alice-bastion/lease")'
REPORTS = 'resource.name.extract("/runs/{run}/reports/") != ""'
ROOT = "projects/_/buckets/team/objects/alice-bastion"


@pytest.mark.parametrize(
    ("expression", "name", "holds"),
    [
        (LEASE, f"{ROOT}/lease", True),
        (LEASE, f"{ROOT}/lease2", False),
        (LEASE, "projects/_/buckets/team/managedFolders/alice-bastion/", False),
        (REPORTS, f"{ROOT}/runs/job-1/reports/0", True),
        (REPORTS, f"{ROOT}/runs/job-1/order", False),
        (REPORTS, "projects/_/buckets/team/managedFolders/alice-bastion/runs/", False),
        (REPORTS, f"{ROOT}/runs//reports/0", False),
        ('resource.name.startsWith("projects/_/buckets/team/objects/a")', f"{ROOT}/x", True),
        ('resource.name.startsWith("projects/_/buckets/team/objects/b")', f"{ROOT}/x", False),
        ('resource.name.extract("/runs/{run}/") == "job-1"', f"{ROOT}/runs/job-1/order", True),
        ('resource.name.endsWith("\\"quoted\\"")', 'x"quoted"', True),
    ],
)
def test_a_condition_holds_for_the_names_that_it_describes(expression: str, name: str, holds: bool) -> None:
    assert compiled(expression)(name) is holds


# The examples of Google's page on `extract`.
ORDERS = "projects/_/buckets/acme-orders-aaa/objects/data_lake/orders/order_date=2019-11-03/aef87g87ae0876"


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("/order_date=", "/", "2019-11-03"),
        ("buckets/", "/", "acme-orders-aaa"),
        ("/orders/", "", "order_date=2019-11-03/aef87g87ae0876"),
        ("", "/orders/order_date=", "projects/_/buckets/acme-orders-aaa/objects/data_lake"),
        ("/customers/", "/", ""),
        ("/orders/", "/nowhere/", ""),
    ],
)
def test_extract_takes_what_is_between_the_first_prefix_and_the_next_suffix(
    before: str, after: str, found: str
) -> None:
    assert extracted(ORDERS, before, after) == found


@pytest.mark.parametrize(
    "expression",
    [
        'request.time < timestamp("2030-01-01T00:00:00Z")',
        f"{LEASE} || {REPORTS}",
        'resource.name.extract("/runs/") != ""',
        'resource.name.startsWith("\\x")',
        "true",
        "",
    ],
)
def test_other_conditions_are_refused(expression: str) -> None:
    with pytest.raises(NotSupported):
        compiled(expression)
