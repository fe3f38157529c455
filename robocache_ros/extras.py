"""What is not in the base installation, asked for where it is first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from robocache_ros.errors import RoboCacheError


def need(module: str, extra: str) -> Any:
    """Import a module that an extra brings; where it is missing, say which one to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise RoboCacheError(
            f"{module}: not installed ({error}); install it with: pip install 'robocache_ros[{extra}]'"
        ) from None
