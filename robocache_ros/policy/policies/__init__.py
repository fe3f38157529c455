"""Who plans: a checkpoint of this package or of LeRobot, a function of the user, a policy server."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.policy.plan import Chunk, Prefix
from robocache_ros.spec import FusionSpec

KINDS = "CHECKPOINT.pt, a LeRobot folder, MODULE:FUNCTION, FILE.py:FUNCTION, openpi://HOST:PORT or gr00t://HOST:PORT"
SERVERS = ("openpi", "gr00t")


class RunnablePolicy(ABC):
    """Plans chunks of actions from frames."""

    takes_prefix = False  # whether it continues a prefix

    @abstractmethod
    def plan(
        self, frame: FusedFrame, tick: int, prefix: Prefix | None = None, earlier: Sequence[FusedFrame] = ()
    ) -> Chunk:
        """Plan from a frame.

        Args:
            frame: the observation.
            tick: its index on the tick grid of the spec.
            prefix: what the chunk continues; None: nothing, or the policy takes none.
            earlier: the frames of the ticks before, oldest first, if `observed_ticks` are several.
        """

    def close(self) -> None:  # noqa: B027 - nothing, unless it has something
        """Release what it has."""


def kind_of(text: str) -> str:
    """Return the kind of a policy, given as on the command line: checkpoint, lerobot, function, openpi or gr00t.

    Raises:
        RoboCacheError: it is of no kind.
    """
    shown = printable(text, 50)
    scheme, found, _ = text.partition("://")
    if found:
        if scheme not in SERVERS:
            raise RoboCacheError(
                f"policy: {shown}: no such kind of server; use openpi://HOST:PORT or gr00t://HOST:PORT"
            )
        return scheme
    if os.path.isdir(text):  # of any text
        return "lerobot"
    if text.endswith(".pt"):
        return "checkpoint"
    if text.rpartition(":")[0] and text.rpartition(":")[2].isidentifier():
        return "function"
    raise RoboCacheError(f"policy: {shown} is not a policy; give {KINDS}")


def check_policy(text: str, spec: FusionSpec) -> None:
    """Check what can be checked of a policy without opening it.

    Raises:
        RoboCacheError: it is of no kind, has no file, does not go with the spec, or needs what is not installed.
    """
    kind = kind_of(text)
    if (file := _file_of(text, kind)) and not os.path.isfile(file):  # of any text
        raise RoboCacheError(f"policy: {printable(file, 80)} does not exist; check its path")
    if kind == "lerobot":
        from robocache_ros.policy.policies.lerobot import check_installed, checked_config

        checked_config(Path(text), spec)
        check_installed()
    elif kind in SERVERS:
        open_policy(text, spec).close()


def observed_ticks(text: str) -> int:
    """Return how many ticks a policy observes; RoboCacheError if it is a damaged checkpoint of LeRobot."""
    if kind_of(text) != "lerobot":
        return 1
    from robocache_ros.policy.lerobot_config import read_lerobot_config

    return read_lerobot_config(text).observed_ticks


def identity(text: str, device: str = "cpu") -> dict[str, str]:
    """Return what a run log has about a policy: its text, kind and device, and path and SHA-256 of its file."""
    from robocache_ros.formats.dataset_folder import sha256

    found = {"policy": text, "kind": kind_of(text), "device": device}
    file = _file_of(text, found["kind"])
    if file and os.path.isfile(file):
        found |= {"path": os.path.abspath(file), "sha256": sha256(Path(file))}
    return found


def _file_of(text: str, kind: str) -> str:
    """Return the path of the file of a checkpoint or of a function; empty if it has none."""
    if kind == "checkpoint":
        return text
    place = text.rpartition(":")[0]
    return place if kind == "function" and place.endswith(".py") else ""


def open_policy(text: str, spec: FusionSpec, device: str = "cpu") -> RunnablePolicy:
    """Open a policy, given as on the command line.

    Args:
        text: `run/checkpoint.pt`, `run/pretrained_model`, `package.module:function`, `file.py:function`,
            `openpi://host:8000` or `gr00t://host:5555`.
        spec: of the frames; its section `run` has the options of the policy.
        device: of a checkpoint.

    Raises:
        RoboCacheError: it cannot be opened.
    """
    policy = _opened(text, spec, device)
    if spec.run and spec.run.prefix and not policy.takes_prefix:
        raise RoboCacheError(f"run.prefix: {printable(text, 60)} takes no prefix; remove the option")
    return policy


def _opened(text: str, spec: FusionSpec, device: str) -> RunnablePolicy:
    kind = kind_of(text)
    if kind == "checkpoint":
        from robocache_ros.policy.policies.checkpoint import CheckpointPolicy
        from robocache_ros.training.trained_policy import TrainedPolicy

        return CheckpointPolicy(TrainedPolicy.load(text, device))
    if kind == "lerobot":
        from robocache_ros.policy.policies.lerobot import LeRobotPolicy

        return LeRobotPolicy.load(Path(text), spec, device)
    if kind == "openpi":
        from robocache_ros.policy.policies.openpi import OpenPiPolicy

        return OpenPiPolicy(text, spec)
    if kind == "gr00t":
        from robocache_ros.policy.policies.gr00t import Gr00tPolicy

        return Gr00tPolicy(text, spec)
    return FunctionPolicy.load(text)


class FunctionPolicy(RunnablePolicy):
    """Calls `function(frame)`, which returns a `Chunk`, or (H, A) actions of the tick of the frame.

    The actions are a NumPy array, a torch tensor or a list, in the units of the robot. A function with a parameter
    `prefix` gets the `Prefix` of the chunk, or None. If the function has a method `close`, it is called at the end.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        try:
            self.takes_prefix = "prefix" in inspect.signature(function).parameters
        except (TypeError, ValueError):  # written in C
            self.takes_prefix = False

    @classmethod
    def load(cls, text: str) -> FunctionPolicy:
        """Import `MODULE:FUNCTION` or `FILE.py:FUNCTION`.

        Raises:
            RoboCacheError: there is no such module, file or function.
        """
        place, _, name = text.rpartition(":")
        module = _file(Path(place)) if place.endswith(".py") else _module(place)
        function = getattr(module, name, None)
        if not callable(function):
            where = printable(place, 60)
            raise RoboCacheError(f"policy: {where} has no function {printable(name, 40)}; check its name")
        return cls(function)

    def plan(
        self, frame: FusedFrame, tick: int, prefix: Prefix | None = None, earlier: Sequence[FusedFrame] = ()
    ) -> Chunk:
        """Call the function."""
        found = self._function(frame, **({"prefix": prefix} if self.takes_prefix else {}))
        if isinstance(found, Chunk):
            tick, found = operator.index(found.tick), found.actions
        if isinstance(found, torch.Tensor):
            found = found.detach().cpu().float().numpy()
        return Chunk(tick, np.asarray(found, np.float32))

    def close(self) -> None:
        """Call the `close` of the function, if it has one."""
        getattr(self._function, "close", lambda: None)()


def _file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("robocache_user_policy", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise RoboCacheError(f"policy: {printable(path, 80)} does not exist; give the path of a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses of the file look for their module
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise RoboCacheError(
            f"policy: no module {printable(name, 60)}; install it, set PYTHONPATH, or give FILE.py:FUNCTION"
        ) from None
