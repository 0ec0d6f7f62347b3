"""`deploy/terraform/`: what the files alone tell. test_terraform_tools.py (`make terraform`) does the rest."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.support.terraform import configuration, example, rules, schema

REPOSITORY = Path(__file__).resolve().parents[2]
TERRAFORM = REPOSITORY / "deploy" / "terraform"
SCHEMAS = {name: schema.load(Path(__file__).parent / "schema" / f"{name}.txt") for name in ("aws", "google", "helm")}
with (REPOSITORY / "bastion" / "core" / "model" / "accelerators.csv").open(encoding="utf-8") as file:
    ACCELERATORS = {row["accelerator_type"]: row for row in csv.DictReader(file)}


def findings(planted: dict[str, str] | None = None) -> list[str]:
    """Everything that is wrong, with some files' texts replaced."""
    modules = configuration.load(TERRAFORM, planted)
    gke, pools = modules[TERRAFORM / "gke"], modules[TERRAFORM / "gke" / "modules" / "node_pools"]
    known = example.machines(gke, pools, modules[TERRAFORM / "eks"])
    return [
        *rules.all_findings(modules, SCHEMAS),
        *example.same_machines(known, ACCELERATORS),
        *(
            fault
            for root in ("gke", "eks")
            for fault in _example(root, modules[TERRAFORM / root], known, planted or {})
        ),
    ]


def _example(
    root: str, module: configuration.Module, known: example.Machines, planted: dict[str, str]
) -> Iterator[str]:
    name = f"{root}/example.tfvars"
    given = example.values(name, planted.get(name) or (TERRAFORM / name).read_text("utf-8"))
    yield from example.variables_set(name, given, module)
    yield from example.tpu_pools(name, given, ACCELERATORS, known)


def test_nothing_is_wrong() -> None:
    assert findings() == []


@dataclass(frozen=True)
class Mistake:
    """A text of a file and what somebody wrote there instead, with what is found."""

    name: str
    file: str
    was: str
    planted: str
    found: str


MISTAKES = [
    Mistake(
        "wrong host count", "gke/example.tfvars", 'type = "v5p-32", zone = "us-central1-a", hosts = 4',
        'type = "v5p-32", zone = "us-central1-a", hosts = 8', "v5p-32: a slice v5p-32 has 4 hosts, not 8",
    ),
    Mistake(
        "machine of another accelerator", "gke/example.tfvars", 'type = "v5p-32",',
        'type = "v5p-32", machine_type = "ct6e-standard-4t",', "v5p-32: ct6e-standard-4t has no tpu-v5p-slice",
    ),
    Mistake(
        "topology of another slice", "gke/example.tfvars", 'type = "v5p-32",', 'type = "v5p-32", topology = "2x2x2",',
        "v5p-32: 4 hosts ct5p-hightpu-4t do not have the chips of 2x2x2",
    ),
    Mistake(
        "unknown TPU type", "gke/example.tfvars", 'type = "v5p-32"', 'type = "v5p-33"',
        "v5p-33 is not a TPU type on GKE",
    ),
    Mistake(
        "variable that the example misspells", "eks/example.tfvars", "google_region ", "google_regoin ",
        "eks/example.tfvars: there is no variable google_regoin",
    ),
    Mistake(
        "label of another machine", "gke/modules/node_pools/tpu.tf", 'ct6e  = "tpu-v6e-slice"', 'ct6e  = "tpu-v6e"',
        "ct6e-standard-4t has tpu-v6e-slice in accelerators.csv, tpu-v6e in tpu.tf",
    ),
    Mistake(
        "wrong GPU label", "gke/machines.tf", 'accelerator = "nvidia-b200"', 'accelerator = "nvidia-b100"',
        "gpu-b200-8: accelerators.csv has 8 nvidia-b200 in a4-highgpu-8g",
    ),
    Mistake(
        "variable without description", "eks/variables.tf", '  description = "The AWS region."\n', "",
        "the variable region has no description",
    ),
    Mistake(
        "variable without type", "gke/modules/network/variables.tf",
        '  description = "The region of the subnet."\n  type        = string\n',
        '  description = "The region of the subnet."\n', "the variable region has no type",
    ),
    Mistake(
        "output without description", "gke/modules/network/outputs.tf", '  description = "The VPC."\n', "",
        "the output network has no description",
    ),
    Mistake(
        "misspelt argument", "gke/modules/network/main.tf", "private_ip_google_access = true",
        "private_google_access = true",
        "google_compute_subnetwork.this: there is no argument private_google_access; "
        "did you mean private_ip_google_access?",
    ),
    Mistake(
        "misspelt argument of a nested block", "gke/modules/node_pools/tpu.tf", "      tpu_topology = ",
        "      topology = ",
        "google_container_node_pool.tpu.placement_policy: there is no argument topology; did you mean tpu_topology?",
    ),
    Mistake(
        "misspelt nested block", "gke/modules/cluster/main.tf", "    gcs_fuse_csi_driver_config {",
        "    gcsfuse_csi_driver_config {",
        "there is no block gcsfuse_csi_driver_config; did you mean gcs_fuse_csi_driver_config?",
    ),
    Mistake(
        "misspelt field of an object", "gke/software/versions.tf", "config_context = ", "context = ",
        "provider helm: kubernetes has no field context",
    ),
    Mistake(
        "attribute that only the provider sets", "gke/modules/registry/main.tf", '  format        = "DOCKER"\n',
        '  format        = "DOCKER"\n  create_time = "now"\n', "there is no argument create_time",
    ),
    Mistake(
        "missing argument", "eks/modules/node_groups/main.tf", '  strategy = "cluster"\n', "",
        "aws_placement_group.this: strategy is missing",
    ),
    Mistake(
        "block written as an argument", "eks/modules/registry/main.tf", "  image_scanning_configuration {",
        "  image_scanning_configuration = {", "image_scanning_configuration is a block, written without =",
    ),
    Mistake(
        "storage role on the project", "gke/modules/cluster/main.tf", '"roles/container.defaultNodeServiceAccount"',
        '"roles/storage.objectAdmin"', "roles/storage.objectAdmin on a whole project",
    ),
    Mistake(
        "basic role on the project", "gke/modules/registry/main.tf", '"roles/logging.logWriter"', '"roles/editor"',
        "roles/editor on a whole project",
    ),
    Mistake(
        "role that a variable says", "gke/modules/cluster/main.tf", '"roles/container.defaultNodeServiceAccount"',
        "var.name", "the role must be written out",
    ),
    Mistake(
        "every action of S3", "eks/modules/storage/main.tf", '["s3:GetObject"]', '["s3:*"]',
        "data aws_iam_policy_document.worker: s3:* on a bucket",
    ),
    Mistake(
        "every bucket", "eks/modules/storage/main.tf", '[for name in local.buckets : "${local.arn}${name}/*"]', '["*"]',
        "s3:GetObject on every bucket",
    ),
    Mistake(
        "managed policy for all of S3", "eks/modules/cluster/main.tf", "AmazonEC2ContainerRegistryPullOnly",
        "AmazonS3FullAccess", "a policy for every bucket of the account",
    ),
    Mistake(
        "unknown variable", "gke/modules/network/main.tf", "region  = var.region", "region  = var.regoin",
        "there is no variable regoin; did you mean region?",
    ),
    Mistake(
        "unknown local value", "gke/main.tf", "local.daemon\n", "local.deamon\n", "there is no local value deamon",
    ),
    Mistake(
        "unknown output", "gke/main.tf", "module.network.subnetwork\n", "module.network.subnet\n",
        "the module network has no output subnet; did you mean subnetwork?",
    ),
    Mistake(
        "unknown resource", "eks/modules/network/main.tf", "vpc_id = aws_vpc.this.id\n}", "vpc_id = aws_vpc.main.id\n}",
        "there is no resource aws_vpc.main",
    ),
    Mistake(
        "unknown attribute", "gke/modules/logs/main.tf", "this.id}", "this.ident}",
        "google_logging_project_bucket_config has no attribute ident",
    ),
    Mistake(
        "missing input of a module", "gke/main.tf", "  service_account = module.cluster.node_service_account\n", "",
        "module node_pools: service_account is missing",
    ),
    Mistake(
        "unknown input of a module", "eks/main.tf", "  efs            = var.efs\n",
        "  efs            = var.efs\n  nfs = true\n", "module storage: the module has no variable nfs",
    ),
    Mistake(
        "pool without preconditions", "eks/modules/cluster/main.tf", "    precondition {", "    postcondition {",
        "aws_eks_node_group.cpu: the pool has no precondition",
    ),
    Mistake(
        "TPU pool that compares no chips", "gke/modules/node_pools/tpu.tf",
        "local.tpu_chips[each.key].slice == each.value.hosts * local.tpu_chips[each.key].machine", "true",
        "no precondition compares the hosts with the topology's chips",
    ),
    Mistake(
        "provider without a version", "gke/modules/network/versions.tf", '      version = "~> 6.50"\n', "",
        "network: the provider google must be pinned as ~> N.N",
    ),
    Mistake(
        "chart without a version", "modules/software/main.tf", "  version          = var.jobset_version\n", "",
        "helm_release.jobset: the chart has no version",
    ),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_each_mistake_is_found(mistake: Mistake) -> None:
    text = (TERRAFORM / mistake.file).read_text("utf-8")
    assert mistake.was in text, "the test plants its mistake in a text that is there no more"
    found = findings({mistake.file: text.replace(mistake.was, mistake.planted, 1)})
    assert any(mistake.found in message for message in found), "\n".join(found)


def test_a_syntax_error_is_found_with_its_place() -> None:
    text = (TERRAFORM / "gke" / "main.tf").read_text("utf-8")
    with pytest.raises(configuration.NotHcl, match=r"^gke/main\.tf: not valid HCL: "):
        findings({"gke/main.tf": text.replace("{", "", 1)})


def test_the_schema_has_the_types_in_use_and_no_others() -> None:
    used = {
        f"{kind}.{type_}" for module in configuration.load(TERRAFORM).values() for kind, type_, _ in module.resources
    }
    stated = {path for one in SCHEMAS.values() for path in one.blocks if not path.startswith("provider.")}
    assert used == stated, "run `make terraform-schema`"


def test_a_schema_is_read_as_it_is_written() -> None:
    for name, one in SCHEMAS.items():
        path = Path(__file__).parent / "schema" / f"{name}.txt"
        assert schema.dump(one) == path.read_text("utf-8")


def test_custom_roles_give_no_more_than_objects_of_a_folder_or_the_calls_of_slices() -> None:
    roles = REPOSITORY / "deploy" / "roles"
    for path in roles.glob("*.yaml"):
        permissions = yaml.safe_load(path.read_text("utf-8"))["includedPermissions"]
        prefix = {"provisioner": "tpu.", "admin": "storage.managedFolders."}.get(path.stem, "storage.objects.")
        assert all(permission.startswith(prefix) for permission in permissions), path.name


def test_the_bucket_s_grants_are_those_of_the_page() -> None:
    """modules/bucket grants what docs/how-to/run-on-gcp.md grants by hand: folder, role, whom, condition.

    Inboxes are on another page, and tests/deploy/test_inbox_rights.py compares them.
    """
    page = (REPOSITORY / "docs" / "how-to" / "run-on-gcp.md").read_text("utf-8").replace("\\\n ", "")
    stated = {
        (folder, who.lower().rstrip("s"), role.lower(), (condition or "").replace('\\"$BASTION', '"$BASTION'))
        for folder, who, role, condition in re.findall(
            r'add-iam-policy-binding "gs://\$BUCKET/\$BASTION/(\S*?)" +--member="\$(\w+)" '
            r'--role="projects/\$PROJECT/roles/bastion(\w+)"(?: +--condition=.title=(\w+))?',
            page,
        )
    }
    text = (TERRAFORM / "modules" / "bucket" / "main.tf").read_text("utf-8")
    granted = {
        (folder, re.sub(r"^var\.", "", who), role, "" if when == "null" else when.removeprefix("local."))
        for folder, role, who, when in re.findall(
            r'\{ folder = "(\S*)", role = "(\w+)", member = (\S+), who = \S+, when = ([\w.]+) \}', text
        )
        if not folder.startswith("inbox/")
    }
    assert granted == stated


def test_json_files_of_the_chart_and_the_build_are_read() -> None:
    build = yaml.safe_load((REPOSITORY / "deploy" / "cloudbuild.yaml").read_text("utf-8"))
    assert build["images"] == ["$_IMAGE"]
    assert json.dumps(build).count("EXTRAS=kubernetes") == 1
