"""The policies of buckets and managed folders in the JSON API: getIamPolicy, setIamPolicy, testIamPermissions."""

from __future__ import annotations

import time
from dataclasses import replace

from bastion.emulators.gcs.calls import Call
from bastion.emulators.gcs.iam.access import Target, check_roles
from bastion.emulators.gcs.iam.permissions import Action, Kind
from bastion.emulators.gcs.iam.policies import CONDITIONAL_VERSION, Policy
from bastion.emulators.gcs.iam.rules import Rules
from bastion.emulators.gcs.json_managed_folders import found_folder
from bastion.emulators.gcs.objects import Bucket
from bastion.net.http1 import Response
from bastion.storage_wire.refusals import invalid, not_allowed, required

_OF_FOLDERS = ("storage.objects.", "storage.managedFolders.", "storage.multipartUploads.", "storage.folders.")


def bucket_policy(call: Call, bucket: str, *, tests: bool) -> Response:
    """Answer a request for `/b/BUCKET/iam` or, with `tests`, `/b/BUCKET/iam/testPermissions`."""
    opened = call.buckets.open(bucket)
    if tests:
        return _tested(call, opened, Target(kind=Kind.BUCKET, bucket=bucket))
    resource = f"projects/_/buckets/{bucket}"
    match call.method:
        case "GET":
            opened.need(Action.GET_BUCKET_POLICY)
            policy = opened.rules().policy
            _check_version(call, policy, unstated=1)
            return call.answer(policy.document(resource))
        case "PUT":
            opened.need(Action.SET_BUCKET_POLICY)
            document = call.document()

            def changed(rules: Rules) -> Rules:
                return replace(rules, policy=_checked(opened, rules.policy.replaced(document), Kind.BUCKET))

            return call.answer(opened.change_rules(changed).policy.document(resource))
        case _:
            raise not_allowed(call.method, call.request.path)


def folder_policy(call: Call, bucket: str, given: str, *, tests: bool) -> Response:
    """Answer a request for `/b/BUCKET/managedFolders/FOLDER/iam` or, with `tests`, `.../iam/testPermissions`."""
    opened = call.buckets.open(bucket)
    name = given if given.endswith("/") else f"{given}/"
    if tests:
        found_folder(opened.rules(), name)
        return _tested(call, opened, Target(kind=Kind.MANAGED_FOLDER, bucket=bucket, name=name))
    resource = f"projects/_/buckets/{bucket}/managedFolders/{name}"
    match call.method:
        case "GET":
            opened.need(Action.GET_MANAGED_FOLDER_POLICY, name)
            policy = found_folder(opened.rules(), name).policy
            # gcloud states no version here, and yet adds bindings with conditions.
            _check_version(call, policy, unstated=CONDITIONAL_VERSION)
            return call.answer(policy.document(resource))
        case "PUT":
            opened.need(Action.SET_MANAGED_FOLDER_POLICY, name)
            document = call.document()

            def changed(rules: Rules) -> Rules:
                folder = found_folder(rules, name)
                policy = _checked(opened, folder.policy.replaced(document), Kind.MANAGED_FOLDER)
                return replace(
                    rules, folders={**rules.folders, name: replace(folder, policy=policy, updated=time.time())}
                )

            return call.answer(found_folder(opened.change_rules(changed), name).policy.document(resource))
        case _:
            raise not_allowed(call.method, call.request.path)


def _check_version(call: Call, policy: Policy, *, unstated: int) -> None:
    """Refuse to show conditions to a client that wants a policy of an older version."""
    version = call.parameters.number("optionsRequestedPolicyVersion") or unstated
    if policy.is_conditional and version < CONDITIONAL_VERSION:
        raise invalid(f"The policy has conditions: ask for optionsRequestedPolicyVersion={CONDITIONAL_VERSION}.")


def _checked(opened: Bucket, policy: Policy, kind: Kind) -> Policy:
    check_roles(policy, kind)
    if opened.gate is not None:
        opened.gate.access.check_roles(policy)
    return policy


def _tested(call: Call, opened: Bucket, target: Target) -> Response:
    if call.method != "GET":
        raise not_allowed(call.method, call.request.path)
    permissions = call.parameters.all("permissions")
    if not permissions:
        raise required("permissions")
    if target.kind is Kind.MANAGED_FOLDER and not all(name.startswith(_OF_FOLDERS) for name in permissions):
        raise invalid("Invalid argument.")
    held = permissions if opened.gate is None else opened.gate.held(permissions, target, opened.rules())
    document: dict[str, object] = {"kind": "storage#testIamPermissionsResponse"}
    if held:
        document["permissions"] = held
    return call.answer(document)
