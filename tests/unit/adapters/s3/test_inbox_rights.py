"""The policy of a user's inbox on S3 allows what the table of docs/how-to/share-a-bastion.md allows, and no more."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any

import pytest

from bastion.adapters.s3.inbox_rights import S3InboxRights
from bastion.core.model.identity import Inbox
from tests.support.rights.expected import CREATE, DELETE, IN_PRIVATE, LIST, OVERWRITE, READ, expected_with_inboxes
from tests.support.rights.how_to import BASTION, BUCKET, PRIVATE

ALICE = "arn:aws:iam::123456789012:role/people/alice"
ACTIONS = {READ: "s3:GetObject", CREATE: "s3:PutObject", OVERWRITE: "s3:PutObject", DELETE: "s3:DeleteObject"}
RIGHTS = S3InboxRights(BUCKET, BASTION)


def allows(policy: dict[str, Any], action: str, resource: str, prefix: str = "") -> bool:
    """As IAM evaluates it: some statement has the action, the resource, and its condition."""
    for statement in policy["Statement"]:
        actions, resources = ([of] if isinstance(of := statement[name], str) else of for name in ("Action", "Resource"))
        wanted = statement.get("Condition", {"StringLike": {"s3:prefix": "*"}})["StringLike"]["s3:prefix"]
        if action in actions and any(fnmatchcase(resource, each) for each in resources) and fnmatchcase(prefix, wanted):
            return True
    return False


def rights(policy: dict[str, Any], place: str) -> set[str]:
    bucket, _, key = place.partition("/")
    found = {right for right, action in ACTIONS.items() if allows(policy, action, f"arn:aws:s3:::{place}")}
    listed = allows(policy, "s3:ListBucket", f"arn:aws:s3:::{bucket}", f"{key.rpartition('/')[0]}/")
    return found | ({LIST} if listed else set())


@pytest.mark.parametrize("name", ["alice", "bob"])
def test_a_user_may_do_with_each_kind_of_object_what_the_table_says(name: str) -> None:
    policy = RIGHTS.policy(name)
    for place, wanted in expected_with_inboxes({"alice": "user", "bob": "other user"}[name]).items():
        # On S3 the right to create is the right to overwrite: code too (docs/how-to/run-on-s3.md).
        also = {OVERWRITE, DELETE} if "/bundles/" in place else set()
        assert rights(policy, place) == wanted | also, place


def test_nothing_is_allowed_in_another_bucket() -> None:
    policy = RIGHTS.policy("alice")
    assert all(rights(policy, f"{PRIVATE}/{BASTION}/{key}") == set() for key in IN_PRIVATE)


def test_the_printed_lines_are_the_document_and_the_command_for_that_principal() -> None:
    *document, command = RIGHTS.granting("alice", Inbox(member=ALICE))
    assert json.loads("\n".join(document)) == RIGHTS.policy("alice")
    assert command == (
        f"aws iam put-role-policy --role-name=alice --policy-name={BASTION}-inbox-alice "
        "--policy-document=file://policy.json"
    )
    user = Inbox(member="arn:aws:iam::123456789012:user/bob")
    assert RIGHTS.revoking("bob", user) == [
        f"aws iam delete-user-policy --user-name=bob --policy-name={BASTION}-inbox-bob"
    ]


def test_who_is_no_role_or_user_is_refused() -> None:
    assert RIGHTS.refusal(Inbox(member=ALICE)) == ""
    for member in ("", "alice", "user:alice@example.com", "arn:aws:s3:::bucket", "arn:aws:iam::1:role/alice"):
        assert "write its ARN" in RIGHTS.refusal(Inbox(member=member)), member
    assert "--uid is for folder buckets" in RIGHTS.refusal(Inbox(member=ALICE, uid=1))
