"""The RayJob of KubeRay: its fields, and its command."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from test.fleet.bucket.conftest import Contents, objects
from test.fleet.deploy.conftest import BUCKET, DEPLOY
from test.fleet.deploy.test_dockerfile import ARGUMENTS
from test.fleet.s3_server import Bucket

Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "kuberay_rayjob.yaml").read_text())["spec"]
    return loaded


@pytest.fixture(scope="module")
def groups(spec: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = spec["rayClusterSpec"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def test_the_cluster_has_the_version_of_the_image(spec: dict[str, Any]) -> None:
    assert spec["rayClusterSpec"]["rayVersion"] == ARGUMENTS["RAY"]


def test_all_nodes_have_one_image_and_are_not_root(groups: list[dict[str, Any]]) -> None:
    pods = [group["template"]["spec"] for group in groups]
    assert len({container["image"] for pod in pods for container in pod["containers"]}) == 1
    assert all(pod["securityContext"]["runAsNonRoot"] for pod in pods)


def test_parameters_of_ray_are_text(groups: list[dict[str, Any]]) -> None:
    assert all(isinstance(value, str) for group in groups for value in group["rayStartParams"].values())


def test_the_command_makes_the_dataset(
    spec: dict[str, Any], bucket: Bucket, shell: Shell, undivided: Callable[..., Contents]
) -> None:
    # KubeRay passes the command to a shell, and Ray its words, in quotes where needed, to another one.
    submitted = subprocess.list2cmdline(shlex.split(spec["entrypoint"].replace(BUCKET, bucket.url)))
    done = shell(["/bin/sh", "-c", submitted])
    assert done.returncode == 0, done.stderr
    assert objects(bucket, "datasets/lift/") == undivided(f"{bucket.url}/raw/lift")
