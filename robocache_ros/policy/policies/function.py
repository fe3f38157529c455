"""A function of the user as a policy."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.policy.plan import Chunk, Prefix
from robocache_ros.policy.policies import RunnablePolicy


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
