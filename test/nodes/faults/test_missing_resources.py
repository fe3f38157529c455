"""A node without file descriptors or a usable runtime folder: it goes on."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")
from diagnostic_msgs.msg import DiagnosticArray
from std_msgs.msg import Float32MultiArray


@pytest.mark.parametrize("ring_slots", [0, 8])
def test_node_without_file_descriptors_goes_on_and_recovers(
    rig: Any, wait: Callable[..., Any], joint_spec: dict[str, Any], ring_slots: int
) -> None:
    process = rig.process(joint_spec, ring_slots=ring_slots, diagnostics_period_s=0.5)
    pid = process.popen.pid
    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    wait(lambda: len(fused), "a tick")
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd")) + 1

    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, hard))
    before = len(fused)
    wait(lambda: len(fused) > before + 100, "two seconds of ticks without file descriptors")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    diagnostics = rig.listen(DiagnosticArray, "/diagnostics")
    wait(lambda: int(rig.status(diagnostics, "ticks")[1].get("emitted", "0")) > 100, "diagnostics")
    assert process.stop() == 0, process.log.read_text()
    assert "Traceback" not in process.log.read_text()


@pytest.mark.parametrize("folder", ["file", "dangling link", "not private"])
def test_node_with_an_unusable_runtime_folder_publishes_messages(
    rig: Any,
    wait: Callable[..., Any],
    joint_spec: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    target = runtime / "robocache"
    if folder == "file":
        target.write_bytes(b"")
    elif folder == "dangling link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        target.mkdir(mode=0o777)
        target.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))

    process = rig.process(joint_spec)

    fused = rig.listen(Float32MultiArray, "/fusion_node/fused")
    wait(lambda: len(fused) > 10, "ticks")
    assert process.log.read_text().count("frames are published as messages only") == 1
    assert process.stop() == 0, process.log.read_text()
