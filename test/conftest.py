"""Makes this folder the package `test`, so that tests can import helpers beside them.

Python has a package of that name, which pytest before 8 takes for the parent of these modules.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

_package = ModuleType("test")
_package.__path__ = [str(Path(__file__).parent)]
sys.modules["test"] = _package
