"""The launch of kernels/tick/row.cu: all vector streams of a tick."""

from __future__ import annotations

from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.tick.tasks import RowArguments

THREADS = 128  # of a block


def launch_row(device: int, target: int, tasks: int, streams: int) -> None:
    """Fuse `streams` vector streams; `target` and `tasks` are addresses of RowTarget and RowTask."""
    launchable = kernel("tick/row.cu", "tick_row", packer(RowArguments), device)
    launchable.launch((streams + 1, 1, 1), THREADS, 0, target, tasks, streams)
