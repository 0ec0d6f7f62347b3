"""The page about training: its settings are valid, and its tables have every line of the recipe that they replace.

The recipe is a common one of a Kubernetes Job with a script: `job.yaml`, `script.sh` and the steps to deploy them. Here
are the first words of its lines, in their order, without those that only open a block of others.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bastion.cli import parsing
from bastion.core.model import daemon_settings
from tests.support import page_commands

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "gpu-training.md").read_text("utf-8")

JOB_YAML = [
    *("apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.labels.job-name"),
    *("metadata.labels.batch-size", "metadata.labels.moe-coef"),
    *("metadata.annotations.batch-size", "metadata.annotations.moe-coef"),
    *("spec.backoffLimit", "spec.template.metadata.labels.job-name"),
    *("serviceAccountName", "restartPolicy", "terminationGracePeriodSeconds"),
    *(
        "volumes",
        "user-home",
        "emptyDir",
        "shm",
        "medium",
        "sizeLimit",
        "script-volume",
        "configMap",
        "script-configmap",
    ),
    *("containers", "customgpt", "image", "imagePullPolicy"),
    *("resources.requests.cpu", "resources.requests.memory", "resources.limits.cpu", "resources.limits.memory"),
    *("resources.requests.nvidia.com/gpu", "resources.limits.nvidia.com/gpu"),
    *("env", "TARGET", "REPO_NAME", "S3_BUCKET_SRC"),
    *("volumeMounts", "/home/eai_role", "/dev/shm", "/home/eai_role/code/script.sh", "subPath", "readOnly"),
    *("command", "/bin/bash", "chmod", "/home/eai_role/code/script.sh"),
    *("livenessProbe", "livenessProbe.initialDelaySeconds", "livenessProbe.periodSeconds"),
    *("readinessProbe", "readinessProbe.initialDelaySeconds", "readinessProbe.periodSeconds"),
]
SCRIPT = [
    *("#!/bin/bash", "exec", "set -xe", "touch /tmp/ready", "echo", "ls -ltra"),
    *("S3_CODE_SRC", "S3_DATA_SRC", "S3_OUTPUT_DIR", "LOCAL_CODE_DIR", "LOCAL_DATA_DIR", "LOCAL_OUTPUT_DIR"),
    *("ENV_NAME", "PYTHON_VERSION", 'aws s3 sync "$S3_CODE_SRC"', 'aws s3 sync "$S3_DATA_SRC"', "ls -R", "source"),
    *("conda create", "conda activate", "pip install", "export NCCL_DEBUG", "pip list", "mkdir -p"),
    *('aws s3 sync "$S3_OUTPUT_DIR/out/"', "sync_outputs", "while true", "sleep 600"),
    *('aws s3 sync "$LOCAL_OUTPUT_DIR"', "sync_outputs &", "torchrun --standalone", "pkill -f sync_outputs"),
    *("touch /tmp/healthy", 'aws s3 sync "$LOCAL_OUTPUT_DIR"', "aws s3 cp"),
]
STEPS = [
    *("Step 1", "Step 2", "Step 3", "kubectl create configmap", "Step 4", "kubectl apply", "Step 5"),
    *("kubectl get jobs", "kubectl get pods", "kubectl logs", "Step 6", "Step 7"),
]


def lines_of(table: str) -> list[str]:
    """What stands in backquotes in the first column, in its order."""
    section = PAGE.partition(f"\n### {table}\n")[2].partition("\n###")[0]
    cells = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    return [each for cell in cells for each in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize(
    ("table", "recipe"), [("job.yaml", JOB_YAML), ("script.sh", SCRIPT), ("Deployment steps", STEPS)]
)
def test_the_table_has_every_line_of_the_recipe_in_its_order(table: str, recipe: list[str]) -> None:
    found = iter(lines_of(table))
    assert [line for line in recipe if not any(each.startswith(line) for each in found)] == []


@pytest.mark.parametrize("table", ["job.yaml", "script.sh", "Deployment steps"])
def test_every_line_has_four_cells_and_says_what_is_there_or_here(table: str) -> None:
    section = PAGE.partition(f"\n### {table}\n")[2].partition("\n###")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    assert [row for row in rows if len(row) != 4] == []
    assert [row[0] for row in rows if not any(cell.strip() for cell in row[1:])] == []


def test_the_settings_of_the_page_are_valid_and_those_of_the_job() -> None:
    secrets, whole = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    pod = daemon_settings.load(whole.encode()).resource_types["h100"].pod
    assert pod is not None
    assert (pod.cpu, pod.cpu_limit, pod.memory, pod.memory_limit, pod.shm) == ("4", "8", "32Gi", "64Gi", "4Gi")
    other = whole.replace('secrets = { WANDB_API_KEY = "wandb/api-key" }\n', "").replace("[types.h100.pod]\n", secrets)
    pod = daemon_settings.load(other.encode()).resource_types["h100"].pod
    assert pod is not None
    assert (pod.secrets, pod.volumes[0].secret) == ({"WANDB_API_KEY": "wandb/api-key"}, "wandb")


def test_every_bastion_command_takes_its_flags() -> None:
    lines = page_commands.commands(PAGE, "bastion")
    assert lines
    for words in lines:
        entry, count = parsing.find(words)
        parsing.parse(entry.name, entry.load(), words[count:])
