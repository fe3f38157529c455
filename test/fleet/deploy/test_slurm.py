"""The script of Slurm arrays."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from test.fleet.bucket.conftest import Contents, contents
from test.fleet.deploy.conftest import DEPLOY

Shell = Callable[..., subprocess.CompletedProcess[str]]
SCRIPT = DEPLOY / "slurm_array.sh"


def test_each_task_of_the_array_is_a_shard() -> None:
    script = SCRIPT.read_text()
    (last,) = re.findall(r"^#SBATCH --array=0-([0-9]+)$", script, re.MULTILINE)
    (shards,) = re.findall(r'--shard "\$SLURM_ARRAY_TASK_ID/([0-9]+)"', script)
    assert int(shards) == int(last) + 1


def test_the_script_makes_the_dataset(data: Path, undivided: Callable[[str | Path], Contents], shell: Shell) -> None:
    reported = [shell([str(SCRIPT)], SLURM_ARRAY_TASK_ID=str(index), SLURM_CPUS_PER_TASK="1") for index in (1, 0)]
    assert [done.returncode for done in reported] == [0, 0], reported
    assert reported[0].stdout == "1 of 2 recordings are converted; the last shard writes the dataset\n"
    assert contents(data / "datasets" / "lift") == undivided("raw/lift")
