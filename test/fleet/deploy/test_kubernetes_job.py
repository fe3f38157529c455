"""The indexed job of Kubernetes: its fields, and its command."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from test.fleet.bucket.conftest import Contents, objects
from test.fleet.deploy.conftest import BUCKET, DEPLOY
from test.fleet.s3_server import Bucket

Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes_job.yaml").read_text())
    return loaded


@pytest.fixture
def container(job: dict[str, Any]) -> dict[str, Any]:
    (one,) = job["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = one
    return found


def test_each_index_is_a_shard(job: dict[str, Any], container: dict[str, Any]) -> None:
    (shard,) = re.findall(r'--shard "\$JOB_COMPLETION_INDEX/([0-9]+)"', container["args"][0])
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == int(shard)


def test_a_shard_with_recordings_that_cannot_be_converted_is_not_repeated(
    job: dict[str, Any], container: dict[str, Any]
) -> None:
    codes = next(rule["onExitCodes"] for rule in job["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in rule)
    assert (codes["containerName"], codes["operator"], codes["values"]) == (container["name"], "In", [1])
    assert "--on-error skip" in container["args"][0]  # with `fail`, the exit code is 2
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"  # without which there is no podFailurePolicy
    assert job["spec"]["backoffLimitPerIndex"] > 0


def test_there_are_as_many_processes_as_cores(container: dict[str, Any]) -> None:
    (jobs,) = re.findall(r"--jobs ([0-9]+)", container["args"][0])
    assert jobs == container["resources"]["requests"]["cpu"]


def test_no_container_is_root(job: dict[str, Any], container: dict[str, Any]) -> None:
    assert job["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_the_command_makes_the_dataset(
    container: dict[str, Any], bucket: Bucket, shell: Shell, undivided: Callable[..., Contents]
) -> None:
    (line,) = container["args"]
    command = [*container["command"], line.replace(BUCKET, bucket.url)]
    reported = [shell(command, JOB_COMPLETION_INDEX=str(index)) for index in (1, 0)]
    assert [done.returncode for done in reported] == [0, 0], reported
    assert reported[0].stdout == "1 of 2 recordings are converted; the last shard writes the dataset\n"
    assert objects(bucket, "datasets/lift/") == undivided(f"{bucket.url}/raw/lift")
