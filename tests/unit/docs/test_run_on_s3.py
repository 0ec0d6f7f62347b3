"""What docs/how-to/run-on-s3.md shows is what the code takes, and its sums are right."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bastion.cli import parsing
from bastion.core.model import daemon_settings
from bastion.wiring.s3_hosts import problems_on_s3
from tests.support import page_commands

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "run-on-s3.md").read_text("utf-8")


def test_the_settings_are_valid_and_fit_a_root_on_s3() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert problems_on_s3(daemon_settings.load(text.encode())) == ()


def test_every_bastion_command_is_given_flags_and_operands_that_it_takes() -> None:
    lines = page_commands.commands(PAGE, "bastion")
    assert lines
    for words in lines:
        entry, count = parsing.find(words)
        parsing.parse(entry.name, entry.load(), words[count:])


def test_the_file_of_rules_is_mentioned() -> None:
    assert "deploy/lifecycle-s3.json" in PAGE


def test_the_policy_is_json_and_has_what_every_operation_needs() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    listing, objects = json.loads(text)["Statement"]
    assert listing["Action"] == "s3:ListBucket"
    wanted = {"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}
    assert {*objects["Action"]} == wanted


def test_the_lifecycle_rules_delete_what_those_on_cloud_storage_delete() -> None:
    rules = json.loads((ROOT / "deploy" / "lifecycle-s3.json").read_text("utf-8"))["Rules"]
    found = {rule["Filter"]["Prefix"]: rule["Expiration"]["Days"] for rule in rules if "Expiration" in rule}
    there = json.loads((ROOT / "deploy" / "lifecycle.json").read_text("utf-8"))["rule"]
    expected = {prefix: rule["condition"]["age"] for rule in there for prefix in rule["condition"]["matchesPrefix"]}
    del expected["NAME-bastion/append-parts/"]
    assert found == {**expected, "NAME-bastion/conditions/": 1}
    assert any("AbortIncompleteMultipartUpload" in rule for rule in rules)


def test_the_cost_of_a_month_is_that_of_its_requests() -> None:
    rows = re.findall(r"\| ([\d.]+) million \| ([\d.]+) million \| \*\*\$([\d.]+)\*\* \|", PAGE)
    assert len(rows) == 5
    for writes, reads, cost in rows:
        assert abs(float(writes) * 5 + float(reads) * 0.4 - float(cost)) < 0.6, (writes, reads, cost)
