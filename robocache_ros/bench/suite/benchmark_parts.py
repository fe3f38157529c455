"""The parts of the suite: a command each, which measures one thing and writes its results into a folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass


def _has_gpu() -> bool:
    import torch  # here, because the list of commands does without it

    return torch.cuda.is_available()


def _has_gpus() -> bool:
    import torch

    return torch.cuda.device_count() > 1


def _has_cupy() -> bool:
    return importlib.util.find_spec("cupy") is not None


def _has_rclpy() -> bool:
    return importlib.util.find_spec("rclpy") is not None


def _has_datasets() -> bool:
    return all(importlib.util.find_spec(module) is not None for module in ("h5py", "PIL"))


def _has_jpeg() -> bool:
    return importlib.util.find_spec("simplejpeg") is not None


def _has_recordings() -> bool:
    return importlib.util.find_spec("rosbags") is not None


def _has_plots() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


# What a part needs -> whether this machine has it, and how to get it.
NEEDS: Mapping[str, tuple[Callable[[], bool], str]] = {
    "GPU": (_has_gpu, "a CUDA device that torch finds"),
    "GPUs": (_has_gpus, "two CUDA devices that torch finds"),
    "CuPy": (_has_cupy, "CuPy: pip install 'robocache_ros[cuda13]', or [cuda12] for an older driver"),
    "ROS": (_has_rclpy, "rclpy: source a ROS 2 installation, or pip install 'robocache_ros[ros]'"),
    "datasets": (_has_datasets, "pip install 'robocache_ros[datasets]'"),
    "jpeg": (_has_jpeg, "pip install 'robocache_ros[datasets]', for simplejpeg"),
    "recordings": (_has_recordings, "pip install 'robocache_ros[export]'"),
    "plots": (_has_plots, "matplotlib: pip install 'robocache_ros[export]'"),
}


@dataclass(frozen=True)
class Part:
    """A part of the suite.

    Args:
        command: after `python -m`; it takes `--out FOLDER` and writes its results there, as JSON and Markdown.
        measures: what it measures, for the help.
        needs: some of `NEEDS`.
        in_suite: more arguments in a run of the whole suite, which has 20 minutes.
        plot: a module that draws the result: `--results FOLDER --out FOLDER`. Without matplotlib it is left out.
        tiny_on_cpu: with `--quick` it needs no GPU.
        limit_s: a run of it in the whole suite is ended after so many seconds. What it has written by then is kept.
    """

    command: tuple[str, ...]
    measures: str
    needs: tuple[str, ...] = ()
    in_suite: tuple[str, ...] = ()
    plot: str | None = None
    tiny_on_cpu: bool = False
    limit_s: float = 120.0

    def missing(self, *, quick: bool = False) -> str | None:
        """Return what this machine lacks for the part, None if nothing."""
        needs = [need for need in self.needs if not (quick and self.tiny_on_cpu and need in ("GPU", "GPUs"))]
        return next((hint for there, hint in (NEEDS[need] for need in needs) if not there()), None)


# Without `jobs` and `commands`, which start many processes.
EXPORT_PARTS = ("--part", "peers", "--part", "reading", "--part", "formats")
# The most important ones first: a budget of time that is too short leaves out the last ones. With these arguments all
# parts together take about 12 minutes on a machine with one H200, and those without ROS and recordings about 9.
PARTS: Mapping[str, Part] = {
    "training": Part(
        ("robocache_ros.bench.training",),
        "trainings on ready tensors, from disk and from the cache, and against torch's DataLoader",
        ("GPU", "datasets"),
        ("--seconds", "2"),
        plot="robocache_ros.bench.plots.plot_rows",
        tiny_on_cpu=True,
        limit_s=330.0,
    ),
    "scaling": Part(
        ("robocache_ros.bench.scaling",),
        "loading, alignment and training on 1, 2, 4 and 8 GPUs, weak and strong",
        ("GPUs", "datasets"),
        plot="robocache_ros.bench.plots.plot_scaling",
        tiny_on_cpu=True,
        limit_s=300.0,
    ),
    "formats": Part(
        ("robocache_ros.bench.formats",),
        "batches of 16 to 256 windows of each format, read and cached, and torch's DataLoader beside them",
        ("recordings", "datasets"),
        ("--limit-s", "75"),
        plot="robocache_ros.bench.plots.plot_rows",
        limit_s=100.0,
    ),
    "loading-gpu": Part(
        ("robocache_ros.bench.loading.on_gpu",),
        "the loader and its caches on the GPU, against DataLoaders that align with NumPy",
        ("GPU", "datasets"),
        ("--seconds", "1"),
        plot="robocache_ros.bench.plots.plot_loading",
        limit_s=90.0,
    ),
    "vectors": Part(
        ("robocache_ros.bench.ops.vectors",),
        "resample and fuse on the GPU, against torch.compile and eager torch",
        ("GPU", "CuPy"),
        ("--quick",),
        plot="robocache_ros.bench.ops.plot_vectors",
        limit_s=90.0,
    ),
    "spatial": Part(
        ("robocache_ros.bench.ops.spatial",),
        "voxels, clouds and images on the GPU, against torch.compile and eager torch",
        ("GPU", "CuPy"),
        plot="robocache_ros.bench.ops.plot_spatial",
        limit_s=90.0,
    ),
    "tick": Part(
        ("robocache_ros.bench.ops.tick",),
        "a whole tick of the engine, on the GPU and the host",
        ("GPU", "CuPy"),
        ("--ticks", "300"),
        limit_s=45.0,
    ),
    "roofline": Part(
        ("robocache_ros.bench.ops.roofline",),
        "each operation's bytes per second against the measured ceilings of the GPU",
        ("GPU", "CuPy"),
        limit_s=40.0,
    ),
    "windows": Part(
        ("robocache_ros.bench.ops.windows",),
        "streams with windows beside linear ones",
        ("GPU", "CuPy"),
        ("--ticks", "500"),
        limit_s=40.0,
    ),
    "profile": Part(
        ("robocache_ros.bench.ops.traces",),
        "traces of a tick, with the time of each kernel",
        ("GPU", "CuPy"),
        limit_s=30.0,
    ),
    "live": Part(
        ("robocache_ros", "bench", "live"),
        "losses, latency and cost of the node under the load of a robot, and of a naive node",
        ("ROS",),
        ("--naive", "--seconds", "12"),
        limit_s=80.0,
    ),
    "ingest": Part(
        ("robocache_ros.bench.live.ingest_cost",),
        "what receiving costs a node, by the kind of subscription",
        ("ROS",),
        ("--seconds", "2"),
        limit_s=80.0,
    ),
    "loading": Part(
        ("robocache_ros.bench.loading",),
        "datasets of each format through the loader, beside the loaders that others use",
        ("recordings", "datasets", "jpeg"),
        ("--rounds", "1"),
        plot="robocache_ros.bench.plots.plot_loading",
        limit_s=80.0,
    ),
    "export": Part(
        ("robocache_ros.bench.export",),
        "exports of recordings, against the encoders alone and forge-robotics",
        ("recordings",),
        ("--rounds", "1", "--seconds", "5", "--minutes", "2", *EXPORT_PARTS),
        limit_s=100.0,
    ),
}
