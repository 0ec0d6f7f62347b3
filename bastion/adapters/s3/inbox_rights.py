"""`bastion.ports.InboxRights` on S3: the policy of a user's role, which somebody with rights in IAM attaches."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from bastion.core.bucket import keys
from bastion.core.model.identity import Inbox
from bastion.core.model.principals import amazon_parts, amazon_problem

_SHARED = ("benchmarks", "bundles")


class S3InboxRights:
    """The inboxes below a ROOT, `folder` of `bucket`."""

    automatic = False

    def __init__(self, bucket: str, folder: str) -> None:
        self._bucket = bucket
        self._folder = folder

    def refusal(self, inbox: Inbox) -> str:
        if inbox.uid is not None:
            return "--uid is for folder buckets; on S3, name the user's role with --member"
        if not inbox.member:
            return "--member is missing: it is who may write to the inbox; for a role or user of AWS write its ARN"
        return amazon_problem(inbox.member)

    def granting(self, user: str, inbox: Inbox) -> list[str]:
        kind, name = amazon_parts(inbox.member)
        document = json.dumps(self.policy(user), indent=2)
        command = (
            f"aws iam put-{kind}-policy --{kind}-name={shlex.quote(name)} --policy-name={self._name(user)} "
            "--policy-document=file://policy.json"
        )
        return [*document.splitlines(), command]

    def revoking(self, user: str, inbox: Inbox) -> list[str]:
        kind, name = amazon_parts(inbox.member)
        return [f"aws iam delete-{kind}-policy --{kind}-name={shlex.quote(name)} --policy-name={self._name(user)}"]

    def check(self, user: str, inbox: Inbox) -> None:
        """Nothing: see `grant`."""

    def grant(self, user: str, inbox: Inbox) -> None:
        """Nothing: IAM belongs to the account, not to the bucket."""

    def revoke(self, user: str) -> None:
        """Nothing, for the same reason."""

    def findings(self, users: Mapping[str, Inbox]) -> dict[str, list[str]]:  # noqa: ARG002 - the bucket does not know
        return {}

    def policy(self, user: str) -> dict[str, Any]:
        """What a user may do: read everything of the bastion, and write his inbox, benchmarks and code."""
        bucket = f"arn:aws:s3:::{self._bucket}"
        own = [f"{keys.INBOX}{user}", *_SHARED]
        return {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Action": "s3:ListBucket",
                    "Resource": bucket,
                    "Condition": {"StringLike": {"s3:prefix": f"{self._folder}/*"}},
                },
                {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{bucket}/{self._folder}/*"},
                {
                    "Effect": "Allow",
                    "Action": ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
                    "Resource": [f"{bucket}/{self._folder}/{name}/*" for name in own],
                },
            ],
        }

    def _name(self, user: str) -> str:
        return f"{self._folder.rpartition('/')[2]}-inbox-{user}"
