"""What GKE's metadata server tells a pod: its node's place and the identity of its service account.

With Workload Identity Federation and no linked Google service account, the account's name is the workload pool.
"""

from __future__ import annotations

from bastion.emulators.kubernetes.kubelet.pod_folder import PodPlan
from bastion.emulators.metadata_server import Tree, account

CLUSTER = "emulated"


def tree(plan: PodPlan) -> Tree:
    email = f"{plan.project}.svc.id.goog"
    service_account = account(email)
    region = plan.zone.rpartition("-")[0]
    return {
        "instance": {
            "attributes": {"cluster-location": region, "cluster-name": CLUSTER, "cluster-uid": CLUSTER},
            "guest-attributes": {},
            "hostname": f"{plan.node}.{plan.zone}.c.{plan.project}.internal",
            "id": str(int.from_bytes(plan.uid.encode()[-7:], "big")),
            "service-accounts": {"default": service_account, email: service_account},
            "zone": f"projects/0/zones/{plan.zone}",
        },
        "project": {"attributes": {}, "numeric-project-id": "0", "project-id": plan.project},
    }
