"""The options of an export: those of its datasets, and those of the run that makes them."""

from __future__ import annotations

from dataclasses import dataclass

from robocache_ros.spec.dataset import MACHINES, OUTPUT, DatasetOptions
from robocache_ros.spec.keys import Flag, boolean, choice, integer, key, place, text
from robocache_ros.storage.paths import AnyPath

MAX_JOBS = 4096


@dataclass(frozen=True, kw_only=True)
class ExportOptions(DatasetOptions):
    """The options of a dataset, and how an export makes it. Only those of a dataset decide on its bytes."""

    overwrite: bool = key(
        boolean, "replace the dataset in the folder", default=False, flag=Flag(OUTPUT, "Replace the dataset in DIR.")
    )
    append: bool = key(
        boolean,
        "add the episodes to the dataset in the folder; for the format delta",
        default=False,
        flag=Flag(OUTPUT, "Add the episodes to the dataset in DIR (delta)."),
    )
    report: bool = key(
        boolean, "write report.html and report.json", default=True, flag=Flag(OUTPUT, "Write report.html.")
    )
    jobs: int | None = key(
        integer(1, MAX_JOBS),
        "processes that convert recordings; 1 by default in Python",
        default=None,
        flag=Flag(MACHINES, "Processes.", ("--jobs", "-j"), "N", "number of cores"),
    )
    on_error: str = key(
        choice("fail", "skip"),
        "if a recording cannot be converted. fail: convert the others, keep their pieces for the next call, then fail; "
        "skip: make the dataset of the others (exit code 1)",
        default="fail",
        flag=Flag(MACHINES, "A recording fails: fail, or leave it out (exit code 1)."),
    )
    pieces: str | AnyPath | None = key(
        place,
        "folder or URL in which the converted recordings stay, for other exports with the same options",
        default=None,
        flag=Flag(MACHINES, "Keep converted recordings here, for other exports.", metavar="DIR"),
    )
    shard: str | None = key(
        text("INDEX/COUNT such as 0/32"),
        "convert a part of the recordings into the pieces, 0/32 to 31/32; the last shard writes the dataset",
        default=None,
        flag=Flag(MACHINES, "Convert a part into --pieces; the last one writes DIR.", metavar="INDEX/COUNT"),
    )
    device: str = key(
        text("a device such as cuda"),
        "converts images and clouds: auto, cpu, cuda or cuda:1; the dataset is the same, unless jpeg is gpu",
        default="cpu",
        flag=Flag(MACHINES, "For images and clouds: auto, cpu, cuda or cuda:1.", metavar="NAME"),
    )
    executor: str = key(
        choice("local", "ray"),
        "local: processes of this machine; ray: a task per recording, as many as the machines of a Ray cluster run",
        default="local",
        flag=Flag(MACHINES, "What converts recordings."),
    )
    address: str | None = key(
        text("HOST:PORT"),
        "of the Ray cluster, as HOST:PORT; else RAY_ADDRESS, or a Ray that is started on this machine",
        default=None,
        flag=Flag(MACHINES, "Ray cluster; else RAY_ADDRESS, or a local Ray.", metavar="HOST:PORT"),
    )
    per_task: str | None = key(
        text("needs such as cpus=2,memory=4GB"),
        "what Ray reserves for a recording, as cpus=2,gpus=0.25,memory=4GB; memory is estimated by default",
        default=None,
        flag=Flag(MACHINES, "Needs of a recording: cpus=2,gpus=0.25,memory=4GB.", metavar="NEEDS"),
    )
    cache_bytes: str | None = key(
        text("a size such as 16GB"),
        "of downloaded recordings to keep for later exports; else ROBOCACHE_CACHE_BYTES, or 64 GiB",
        default=None,
        flag=Flag(MACHINES, "Downloads to keep.", metavar="SIZE", shown="ROBOCACHE_CACHE_BYTES, or 64GiB"),
    )
