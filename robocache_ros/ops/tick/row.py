"""The launch of kernels/tick/row.cu: all vector streams of a tick."""

from __future__ import annotations

from robocache_ros.ops.cuda.loader import kernel
from robocache_ros.ops.cuda.structures import packer
from robocache_ros.ops.tick.tasks import RowArguments

THREADS = 128  # of a block


def launch_row(device: int, target: int, tasks: int, windows: int, streams: int, window_count: int) -> None:
    """Fuse vector streams: `streams` of two samples and `window_count` windows.

    `target`, `tasks` and `windows` are addresses of RowTarget, RowTasks and WindowTasks.
    """
    launchable = kernel("tick/row.cu", "tick_row", packer(RowArguments), device, (f"WINDOWS={int(window_count > 0)}",))
    launchable.launch((streams + window_count + 1, 1, 1), THREADS, 0, target, tasks, windows, streams, window_count)
