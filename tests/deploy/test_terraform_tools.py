"""`make terraform`: the provider's published bindings, Terraform itself where it is installed, and checkov.

Terraform needs no account and no network here: the providers are stand-ins that know the schema (`providers.py`), and
the tests in `deploy/terraform/*/tests` mock what they would create.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.cli import parsing
from bastion.core.model import daemon_settings, instance_types
from tests.support.rights import deployment, how_to
from tests.support.terraform import providers, rewrite_schema, schema

REPOSITORY = Path(__file__).resolve().parents[2]
ROOTS = ("gke", "gke/software", "eks", "eks/software")

pytestmark = [pytest.mark.terraform, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def asked_for(request: pytest.FixtureRequest) -> None:
    if "terraform" not in request.config.getoption("markexpr"):
        pytest.skip("the tools are asked for by: make terraform")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the configuration reads, to plant mistakes in."""
    shutil.copytree(REPOSITORY / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns(".terraform*"))
    table = Path("bastion", "core", "model", "accelerators.csv")
    (tmp_path / table).parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / table, tmp_path / table)
    return tmp_path / "deploy" / "terraform"


def test_the_schema_is_that_of_the_bindings() -> None:
    for path, text in rewrite_schema.derived(Path(os.environ["BASTION_TERRAFORM_BINDINGS"])):
        assert path.read_text("utf-8") == text, "run `make terraform-schema` and review the difference"


# Terraform

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def terraform(tmp_path: Path) -> Iterator[Run]:
    """Runs Terraform in a folder, with stand-ins of the providers."""
    program = shutil.which("terraform")
    if program is None:
        pytest.skip("terraform is not installed: no fmt, validate and test")
    tables = [schema.load(path) for path in rewrite_schema.SCHEMA.glob("*.txt") if path.stem != "bindings"]
    with providers.serving(tables, tmp_path) as environment:

        def run(folder: Path, *arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
            settings = {**os.environ, **environment, "TF_CLI_CONFIG_FILE": os.devnull, "TF_IN_AUTOMATION": "1"}
            command = [program, *arguments]
            return subprocess.run(
                command, cwd=folder, env=settings, capture_output=True, text=True, check=False, input=input
            )

        yield run


def initialized(terraform: Run, folder: Path) -> Path:
    made = terraform(folder, "init", "-backend=false", "-input=false", "-no-color")
    assert made.returncode == 0, made.stderr
    return folder


def outcome(terraform: Run, folder: Path) -> subprocess.CompletedProcess[str]:
    example = ["-var-file=example.tfvars"] if (folder / "example.tfvars").exists() else []
    return terraform(initialized(terraform, folder), "test", "-no-color", *example)


def test_the_files_are_formatted(terraform: Run, tree: Path) -> None:
    made = terraform(tree, "fmt", "-check", "-recursive", "-diff")
    assert made.returncode == 0, made.stdout


@pytest.mark.parametrize("root", ROOTS)
def test_terraform_finds_it_valid_and_its_tests_pass(terraform: Run, tree: Path, root: str) -> None:
    valid = terraform(initialized(terraform, tree / root), "validate", "-no-color")
    assert valid.returncode == 0, valid.stderr
    made = outcome(terraform, tree / root)
    assert made.returncode == 0, made.stdout + made.stderr


def outputs(terraform: Run, folder: Path, names: list[str]) -> dict[str, str]:
    """What the example's outputs are: the words of a check that fails."""
    tests = folder / "tests" / "environment.tftest.hcl"
    shown = ", ".join(f"{name} = output.{name}" for name in names)
    check = f"assert {{\n condition = output.root == null\n error_message = jsonencode({{ {shown} }})\n}}"
    tests.write_text(tests.read_text("utf-8") + f'\nrun "shown" {{\n{check}\n}}\n', "utf-8")
    made = terraform(initialized(terraform, folder), "test", "-json", "-var-file=example.tfvars")
    events = [json.loads(line) for line in made.stdout.splitlines()]
    (said,) = [event["diagnostic"]["detail"] for event in events if event.get("type") == "diagnostic"]
    found: dict[str, str] = json.loads(said)
    return found


@pytest.mark.parametrize("root", ["gke", "eks"])
def test_the_outputs_are_settings_and_commands_that_bastion_takes(terraform: Run, tree: Path, root: str) -> None:
    shown = outputs(terraform, tree / root, ["settings", "manifest", "root"])
    known = instance_types.served_types()
    tables = ("\n" + shown["settings"]).split("\n[")[1:]
    taken = [table for table in tables if not table.startswith("types.") or table[6 : table.index("]")] in known]
    text = (
        "".join(f"[{table}\n" for table in taken)
        + '[defaults]\nzones = ["k8s:training"]\n[[tiers]]\nmodel = "on-demand"\n'
    )
    settings = daemon_settings.load(text.replace('"..."', '"5f0c5f0c-0000-4000-8000-000000000000"').encode())
    assert set(settings.clusters) == {"training"}
    assert settings.clusters["training"].provider == root
    words = shlex.split(shown["manifest"])[1:-2]
    entry, count = parsing.find(words)
    call = parsing.parse(entry.name, entry.load(), words[count:])
    assert call.flags.root == shown["root"] == "gs://my-team-bastion/team-bastion"


# Of each: what is written instead of what, and what Terraform says.
REFUSED = {
    "hosts of another slice": (
        "gke", 'type = "v5p-32", zone = "us-central1-a", hosts = 4',
        'type = "v5p-32", zone = "us-central1-a", hosts = 2',
        "topology 2x2x4 has 16 chips, but 2 hosts ct5p-hightpu-4t have 8; set hosts = 4",
    ),
    "hosts that fit a topology of another type": (
        "gke", 'type = "v5p-32", zone = "us-central1-a", hosts = 4',
        'type = "v5p-32", topology = "2x2x2", zone = "us-central1-a", hosts = 2', "a slice v5p-32 has 4 hosts, not 2",
    ),
    "machine of another accelerator": (
        "gke", 'type = "v5p-32",', 'type = "v5p-32", machine_type = "ct4p-hightpu-4t",',
        "ct4p-hightpu-4t has no tpu-v5p-slice, which v5p-32 needs",
    ),
    "unknown TPU type": ("gke", '"v5p-32"', '"v5p-33"', "v5p-33 is not a TPU type on GKE"),
    "reservation without a name": (
        "gke", ', reservation = "team-v5p"', "", 'capacity = "reservation" and reservation = NAME go together',
    ),
    "days instead of seconds": ("gke", '"86400s"', '"1d"', 'max_run_duration, at most "604800s", go together'),
    "half a slice": ("gke", "slices = 2", "slices = 1.5", "slices must be a whole number"),
    "two pools of one name": ("gke", " a100 = {", " v5e-16-spot-1 = {", "Two node pools would have one name"),
    "a name with a capital": ("gke", " a100 = {", " A100 = {", "Name each pool with 2 to 36 lowercase letters"),
    "a zone for a region": ("gke", '"us-central1"', '"us-central1-a"', "Use a region such as us-central1"),
    "a person without a kind": ("gke", '["group:tpu-users@', '["tpu-users@', "Say what each is: user:NAME@example.com"),
    "one bucket for both": ("gke", '"my-team-bastion-admin"', '"my-team-bastion"', "Use another bucket than bucket"),
    "unknown GPU type": ("gke", "gpu-a100-8", "gpu-a100-16", "gpu-a100-16 is not a GPU type"),
    "part of an H100 host on demand": (
        "gke", 'type = "gpu-a100-8"', 'type = "gpu-h100-1"', "a3-highgpu-1g is sold as spot and flex-start only",
    ),
    "zone of another region": (
        "gke", 'type = "gpu-a100-8", zone = "us-central1-a"', 'type = "gpu-a100-8", zone = "us-east1-d"',
        "is not in the cluster's region us-central1",
    ),
    "unknown instance type": ("eks", "p4d.24xlarge", "p3.16xlarge", "p3.16xlarge is not known"),
    "capacity block without a reservation": (
        "eks", ', reservation = "cr-0123456789abcdef0"', "", "reservation = \"cr-...\" go together",
    ),
    "subnet of a zone that is not there": (
        "eks", 'zone = "us-west-2b"', 'zone = "us-west-2d"', "zone us-west-2d is not one of zones",
    ),
    "zones of another region": ("eks", '"us-west-2"', '"us-east-1"', "Use availability zones of region"),
    "a region of AWS for Google": ("eks", '"us-west1"', '"us-west-2"', "Use a region of Google Cloud"),
    "a GPU pool named as the other": ("eks", " p4d = {", " cpu = {", "The pool cpu is that of cpu_nodes"),
    "open API server": ("eks", "203.0.113.0/24", "0.0.0.0/0", "Name the ranges of your offices or VPN"),
    "Lustre over a bucket that jobs only read": (
        "eks", 'bucket = "my-training"', 'bucket = "my-datasets"', "must be in data_buckets with write",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_precondition_says_what_is_wrong(terraform: Run, tree: Path, mistake: str) -> None:
    root, was, planted, said = REFUSED[mistake]
    example = tree / root / "example.tfvars"
    text = re.sub(" +", " ", example.read_text("utf-8"))
    assert was in text
    example.write_text(text.replace(was, planted, 1), "utf-8")
    made = outcome(terraform, tree / root)
    assert made.returncode == 1
    assert said in " ".join(re.sub(r"[│╷╵]", " ", made.stdout + made.stderr).split())


@pytest.mark.parametrize(
    ("file", "was", "planted"),
    [
        ("modules/network/main.tf", "private_ip_google_access = true", "private_google_access = true"),
        ("modules/node_pools/tpu.tf", "      tpu_topology = ", "      topology = "),
        ("modules/network/main.tf", "= var.region", "= var.regoin"),
        ("main.tf", "  service_account = module.cluster.node_service_account\n", ""),
        ("modules/cluster/main.tf", "initial_node_count       = 1", 'initial_node_count       = "one"'),
        ("main.tf", "{", ""),
    ],
)
def test_terraform_refuses_what_is_not_valid(terraform: Run, tree: Path, file: str, was: str, planted: str) -> None:
    folder = initialized(terraform, tree / "gke")
    path = folder / file
    path.write_text(path.read_text("utf-8").replace(was, planted, 1), "utf-8")
    assert terraform(folder, "validate", "-no-color").returncode == 1


def test_the_daemon_s_objects_and_the_queues_are_installed(terraform: Run, tree: Path) -> None:
    """The second stage with the real output of `bastion kubernetes manifest`, on the cluster and on a VM."""
    folder = tree / "gke" / "software"
    command = [
        "bastion", "kubernetes", "manifest", "--output=json", "--root=gs://my-team-bastion/team-bastion",
        "--image=us-docker.pkg.dev/my-project/bastion/bastion:v1", "--namespace=bastion",
    ]  # fmt: skip
    program = REPOSITORY / ".venv" / "bin" / command[0]
    made = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=True)
    (folder / "bastion.json").write_text(made.stdout, "utf-8")
    (folder / "queues.yaml").write_text(
        "# exported\napiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {name: research}\n---\n"
        "apiVersion: kueue.x-k8s.io/v1beta2\nkind: LocalQueue\n"
        "metadata: {name: bastion-research, namespace: bastion}\n",
        "utf-8",
    )
    runs = [
        ("cluster", "", "Deployment team-bastion", ""),
        (
            "vm",
            "training-daemon@my-project.iam.gserviceaccount.com",
            "RoleBinding team-bastion-vm",
            "Deployment team-bastion",
        ),
    ]
    text = 'mock_provider "helm" {}\n'
    for place, user, has, lacks in runs:
        text += f"""
run "{place}" {{
  variables {{
    context      = "training"
    namespace    = "bastion"
    kueue        = true
    bastion_file = "bastion.json"
    queues_file  = "queues.yaml"
    bastion_in   = "{place}"
    daemon_user  = "{user}"
  }}
  assert {{
    condition     = contains(output.objects.bastion, "{has}") && !contains(output.objects.bastion, "{lacks}")
    error_message = jsonencode(output.objects)
  }}
  assert {{
    condition     = output.objects.queues == ["ClusterQueue research", "LocalQueue bastion-research"]
    error_message = jsonencode(output.objects)
  }}
}}
"""
    (folder / "tests" / "objects.tftest.hcl").write_text(text, "utf-8")
    made = outcome(terraform, folder)
    assert made.returncode == 0, made.stdout + made.stderr
    wrong = json.loads((folder / "bastion.json").read_text("utf-8"))
    (folder / "queues.yaml").write_text(json.dumps(wrong["items"][0]), "utf-8")
    refused = outcome(terraform, folder)
    assert "queues_file must be the output of" in " ".join((refused.stdout + refused.stderr).split())


# Bindings


def test_terraform_evaluates_the_bindings_as_the_tests_of_rights_do(tree: Path, terraform: Run, tmp_path: Path) -> None:
    """`terraform console` gives the module's local value; test_rights.py tries what our evaluation of it grants."""
    folder = initialized(terraform, tree / "modules" / "bucket")
    variables = tmp_path / "variables.tfvars.json"
    variables.write_text(json.dumps(deployment.VARIABLES), "utf-8")
    made = terraform(folder, "console", f"-var-file={variables}", input="jsonencode(local.grants)\n")
    assert made.returncode == 0, made.stderr
    by_terraform: list[tuple[object, ...]] = [
        (f"{how_to.BASTION}/{one['folder']}", one["role"], one["member"], one["when"])
        for one in json.loads(json.loads(made.stdout))
    ]
    ours: list[tuple[object, ...]] = [
        (one.folder, one.role.rpartition("bastion")[2].lower(), one.member, one.condition)
        for one in deployment.terraform().granted
        if one.bucket == how_to.BUCKET
    ]

    def in_order(bindings: list[tuple[object, ...]]) -> list[str]:
        return sorted(json.dumps(one, sort_keys=True) for one in bindings)

    assert in_order(by_terraform) == in_order(ours)


# checkov


def checkov(folder: Path) -> dict[str, list[dict[str, str]]]:
    """The results of all policies: failed_checks, skipped_checks, parsing_errors."""
    program = os.environ["BASTION_CHECKOV"]
    command = [program, "--directory", str(folder), "--framework", "terraform", "--skip-download", "--output", "json"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    results: dict[str, list[dict[str, str]]] = json.loads(made.stdout)["results"]
    return results


def test_checkov_has_no_finding_and_every_exception_is_needed() -> None:
    folder = REPOSITORY / "deploy" / "terraform"
    results = checkov(folder)
    assert results["parsing_errors"] == []
    assert [f"{one['check_id']} {one['resource']}" for one in results["failed_checks"]] == []
    needed = {(one["check_id"], Path(one["file_abs_path"]).resolve()) for one in results["skipped_checks"]}
    stated = {
        (check, path.resolve())
        for path in folder.rglob("*.tf")
        for check in re.findall(r"checkov:skip=(\w+)", path.read_text("utf-8"))
    }
    assert stated - needed == set(), "an exception that nothing needs"


def test_checkov_finds_a_planted_mistake(tree: Path) -> None:
    path = tree / "modules" / "bucket" / "main.tf"
    path.write_text(path.read_text("utf-8").replace('"enforced"', '"inherited"'), "utf-8")
    assert "CKV_GCP_114" in {one["check_id"] for one in checkov(path.parent)["failed_checks"]}
