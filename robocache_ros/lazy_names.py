"""Names of a package that are imported when they are used, so that importing the package is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the functions `__getattr__` and `__dir__` of a package (PEP 562), and its `__all__`.

    Args:
        package: its `__name__`.
        homes: the names by the module that has them, which is given relative to the package, or in full.
    """
    root = package.partition(".")[0] + "."
    modules = {home: home if home.startswith(root) else f"{package}.{home}" for home in homes}
    home_of = {name: modules[home] for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)  # found there from now on
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names, list(home_of)
