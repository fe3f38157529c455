"""The files of deploy/ and the page on exports of many machines: their fields, and their commands on this machine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from robocache_ros.exporter.recordings import find_recordings
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.exporting import export
from test.fleet.conftest import Contents, contents, objects
from test.fleet.s3 import Bucket, Faults

# The commands of the files in deploy/, run on this machine: with folders of a test in place of those of the files.

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
SPEC = ROOT / "config" / "panda_lift.yaml"
TASK, BUCKET = "lift the cube", "s3://robot-data"  # of all these files


@pytest.fixture
def data(tmp_path, bags) -> Path:
    """A folder with two short recordings in raw/lift, and the spec robot.yaml."""
    for bag in bags:
        shutil.copytree(bag, tmp_path / "raw" / "lift" / bag.name)
    shutil.copy(SPEC, tmp_path / "robot.yaml")
    return tmp_path


@pytest.fixture
def bucket(s3, data) -> Bucket:
    """A bucket with the contents of `data`."""
    for entry in data.iterdir():
        s3.put(entry.name, entry)
    return s3


@pytest.fixture
def undivided(data, monkeypatch) -> Callable[[str | Path], Contents]:
    """Exports a folder, which may be relative to `data`, or a URL, in one process."""

    def make(folder: str | Path) -> Contents:
        monkeypatch.chdir(data)
        recordings = find_recordings([folder])
        return contents(export(recordings, load_spec(SPEC), data / "fresh" / "lift", DatasetOptions(task=TASK)).out)

    return make


@pytest.fixture
def shell(tmp_path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command with `robocache` of this checkout, as a container or a cluster would."""
    program = tmp_path / "bin" / "robocache"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m robocache_ros "$@"\n')
    program.chmod(0o755)

    def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        path = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        env = os.environ | path | environment
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    return run


# The Dockerfile, read without Docker: what it pins, and that what it copies is enough to install the package.

LINES = (DEPLOY / "Dockerfile").read_text().splitlines()
ARGUMENTS = dict(line[4:].split("=", 1) for line in LINES if line.startswith("ARG "))


def instructions(name: str) -> list[str]:
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{name} ")]


def test_versions_are_pinned_and_programs_do_not_run_as_root():
    assert re.fullmatch(r"3\.\d+\.\d+-slim-\w+", ARGUMENTS["PYTHON"])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", ARGUMENTS[name]) for name in ("TORCH", "RAY"))
    assert {base.partition(" ")[0] for base in instructions("FROM")} == {"python:${PYTHON}"}
    last = max(number for number, line in enumerate(LINES) if line.startswith("FROM "))
    assert [line for line in LINES[last:] if line.startswith("USER ")] == ["USER 1000"]
    assert instructions("RUN")[-1] == "useradd --create-home --uid 1000 robocache"


def test_the_extras_and_the_entry_point_exist():
    setup = (ROOT / "setup.py").read_text()
    gpu = re.findall(r"EXTRAS=([\w,]+)$", "\n".join(LINES[:6]), re.MULTILINE)
    for name in ",".join([ARGUMENTS["EXTRAS"], *gpu]).split(","):
        assert f'"{name}": [' in setup
    assert instructions("ENTRYPOINT") == ['["robocache"]']
    assert '"robocache = ' in setup


@pytest.mark.package
def test_what_the_ignore_file_lets_in_is_enough_to_install_the_package(tmp_path):
    source, to = tmp_path / "src", tmp_path / "to"
    source.mkdir()
    for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines():
        if line.startswith("!"):
            path = ROOT / line[1:]
            if path.is_file():
                shutil.copy(path, source)
            else:
                shutil.copytree(path, source / path.name, ignore=shutil.ignore_patterns("__pycache__"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(to), str(source)], check=True, timeout=100)
    assert (to / "share" / "robocache_ros" / "kernels").is_dir()
    version, env = ["-m", "robocache_ros", "--version"], {"PYTHONPATH": str(to), "PATH": "/usr/bin:/bin"}
    assert subprocess.run([sys.executable, *version], cwd=to, env=env, capture_output=True, check=True).stdout


# The indexed job of Kubernetes: its fields, and its command.


JOB: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes_job.yaml").read_text())["spec"]
POD = JOB["template"]["spec"]
(CONTAINER,) = POD["containers"]
(LINE,) = CONTAINER["args"]


def test_each_index_is_a_shard_with_as_many_processes_as_cores_that_are_not_root():
    (shard,) = re.findall(r'--shard "\$JOB_COMPLETION_INDEX/([0-9]+)"', LINE)
    assert (JOB["completionMode"], JOB["completions"]) == ("Indexed", int(shard))
    assert re.findall(r"--jobs ([0-9]+)", LINE) == [CONTAINER["resources"]["requests"]["cpu"]]
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert CONTAINER["securityContext"]["allowPrivilegeEscalation"] is False


def test_a_shard_with_recordings_that_cannot_be_converted_is_not_repeated():
    codes = next(rule["onExitCodes"] for rule in JOB["podFailurePolicy"]["rules"] if "onExitCodes" in rule)
    assert (codes["containerName"], codes["operator"], codes["values"]) == (CONTAINER["name"], "In", [1])
    assert "--on-error skip" in LINE  # with `fail`, the exit code is 2
    assert POD["restartPolicy"] == "Never"  # without which there is no podFailurePolicy
    assert JOB["backoffLimitPerIndex"] > 0


def test_the_indexed_job_makes_the_dataset(bucket, shell, undivided):
    command = [*CONTAINER["command"], LINE.replace(BUCKET, bucket.url)]
    reported = [shell(command, JOB_COMPLETION_INDEX=str(index)) for index in (1, 0)]
    assert [done.returncode for done in reported] == [0, 0], reported
    assert reported[0].stdout == "1 of 2 recordings are converted; the last shard writes the dataset\n"
    assert objects(bucket, "datasets/lift/") == undivided(f"{bucket.url}/raw/lift")


# The RayJob of KubeRay: its fields, and its command.


RAY_JOB: dict[str, Any] = yaml.safe_load((DEPLOY / "kuberay_rayjob.yaml").read_text())["spec"]


def test_the_cluster_has_one_image_of_its_version_is_not_root_and_its_parameters_are_text():
    cluster = RAY_JOB["rayClusterSpec"]
    assert cluster["rayVersion"] == ARGUMENTS["RAY"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pods = [group["template"]["spec"] for group in groups]
    assert len({container["image"] for pod in pods for container in pod["containers"]}) == 1
    assert all(pod["securityContext"]["runAsNonRoot"] for pod in pods)
    assert all(isinstance(value, str) for group in groups for value in group["rayStartParams"].values())


def test_the_ray_job_makes_the_dataset(bucket, shell, undivided):
    # KubeRay passes the command to a shell, and Ray its words, in quotes where needed, to another one.
    submitted = subprocess.list2cmdline(shlex.split(RAY_JOB["entrypoint"].replace(BUCKET, bucket.url)))
    done = shell(["/bin/sh", "-c", submitted])
    assert done.returncode == 0, done.stderr
    assert objects(bucket, "datasets/lift/") == undivided(f"{bucket.url}/raw/lift")


# The script of Slurm arrays.

SCRIPT = DEPLOY / "slurm_array.sh"


def test_each_task_of_the_array_is_a_shard():
    script = SCRIPT.read_text()
    (last,) = re.findall(r"^#SBATCH --array=0-([0-9]+)$", script, re.MULTILINE)
    (shards,) = re.findall(r'--shard "\$SLURM_ARRAY_TASK_ID/([0-9]+)"', script)
    assert int(shards) == int(last) + 1


def test_the_script_makes_the_dataset(data, undivided, shell):
    reported = [shell([str(SCRIPT)], SLURM_ARRAY_TASK_ID=str(index), SLURM_CPUS_PER_TASK="1") for index in (1, 0)]
    assert [done.returncode for done in reported] == [0, 0], reported
    assert reported[0].stdout == "1 of 2 recordings are converted; the last shard writes the dataset\n"
    assert contents(data / "datasets" / "lift") == undivided("raw/lift")


# The commands of the page on exports of many machines, run as it shows them.

PAGE = ROOT / "docs" / "how-to" / "export_on_many_machines.md"
BLOCKS = re.compile(r"```bash\n(.*?)```", re.DOTALL)


def commands() -> list[list[str]]:
    """The arguments of `robocache`, without the commands that need a cluster: the test of KubeRay runs that of Ray."""
    text = "\n".join(BLOCKS.findall(PAGE.read_text(encoding="utf-8"))).replace("\\\n", "")
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [line[1:] for line in lines if line[:1] == ["robocache"] and "ray" not in line]


def test_the_commands_run_as_shown(bucket, data, monkeypatch, capfd):
    from robocache_ros.cli import main

    monkeypatch.chdir(data)
    ran, reported = [], ""
    for arguments in commands():
        with pytest.raises(SystemExit) as ended:
            main([argument.replace(BUCKET, bucket.url) for argument in arguments])
        out, errors = capfd.readouterr()
        assert not ended.value.code, errors
        ran.append(arguments[0])
        reported += out
    assert ran == ["check", "export", "info", "export", "export", "export", "fleet", "fleet", "fleet"]
    assert "1 of 2 recordings are converted; the last shard writes the dataset" in reported
    assert ": complete" in reported


def test_the_line_of_a_shard_is_that_of_the_command():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "robocache_ros" / "cli").rglob("*.py"))
    (line,) = re.findall(r"^412 of 1,000 (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(part in sources for part in line.split("; "))


# The requests that an export from a bucket to a bucket sends for a recording.


def counted(faults: Faults) -> Counter[str]:
    """The requests by the rows of the page, which are forgotten then."""
    rows = {"HEAD": "GET, HEAD", "GET": "GET, HEAD"}
    methods = ["LIST" if each.method == "GET" and "list-type" in each.path else each.method for each in faults.requests]
    faults.restart()
    return Counter(rows.get(method, method) for method in methods)


def test_a_recording_has_at_most_the_requests_of_the_page(faulty_s3, faults, bags, spec):
    urls, found = [faulty_s3.put(f"raw/{bag.name}", bag) for bag in bags], []
    for count in (1, 2):
        export(urls[-count:], spec, f"{faulty_s3.url}/out{count}", DatasetOptions())
        found.append(counted(faults))
    rows = re.findall(r"^\| (GET, HEAD|PUT|LIST|DELETE) \| ([0-9]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 4
    one, two = found
    assert [name for name, number in rows if two[name] - one[name] > int(number)] == []
