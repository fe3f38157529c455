"""Who plans: a checkpoint, a function of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.policy.plan import Chunk


class RunnablePolicy(Protocol):
    """Plans chunks of actions from frames."""

    def plan(self, frame: FusedFrame, tick: int) -> Chunk:
        """Plan from a frame.

        Args:
            frame: the observation.
            tick: its index on the tick grid of the spec.
        """

    def close(self) -> None:
        """Release what it has."""


def kind_of(text: str) -> str:
    """Return the kind of a policy, given as on the command line.

    Raises:
        RoboCacheError: it is neither a checkpoint nor a function.
    """
    if "://" in text:
        raise RoboCacheError(f"policy: {printable(text, 60)}: no such kind of server; give a checkpoint or a function")
    if text.endswith(".pt"):
        return "checkpoint"
    if text.rpartition(":")[0] and text.rpartition(":")[2].isidentifier():
        return "function"
    raise RoboCacheError(
        f"policy: {printable(text, 60)} is not a policy; give CHECKPOINT.pt, MODULE:FUNCTION or FILE.py:FUNCTION"
    )


def identity(text: str, device: str = "cpu") -> dict[str, str]:
    """Return what a run log has about a policy: its text, kind and device, and path and SHA-256 of its file."""
    from robocache_ros.formats.checksums import sha256

    found = {"policy": text, "kind": kind_of(text), "device": device}
    file = Path(text if found["kind"] == "checkpoint" else text.rpartition(":")[0])
    if file.is_file():
        found |= {"path": str(file.absolute()), "sha256": sha256(file)}
    return found


def open_policy(text: str, device: str = "cpu") -> RunnablePolicy:
    """Open a policy, given as on the command line.

    Args:
        text: `run/checkpoint.pt`, `package.module:function` or `file.py:function`.
        device: of a checkpoint.

    Raises:
        RoboCacheError: it cannot be opened.
    """
    if kind_of(text) == "checkpoint":
        from robocache_ros.policy.policies.checkpoint import CheckpointPolicy

        return CheckpointPolicy.load(text, device)
    from robocache_ros.policy.policies.function import FunctionPolicy

    return FunctionPolicy.load(text)
