"""What a voxel stores of its points: each reduction is a module here and a CUDA header of the same name.

`REDUCTIONS` finds them by their file names. `kind.py` has the interface, kernels/voxel/reductions/ the headers. Modules
here import torch only when they compute, because the fusion spec reads their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from robocache_ros.reductions.kind import ReductionKind

REDUCTIONS: Mapping[str, ReductionKind] = {
    module.name: import_module(f"{__name__}.{module.name}").REDUCTION
    for module in iter_modules(__path__)
    if module.name != "kind"
}
SPEC_REDUCTIONS: Mapping[str, ReductionKind] = {name: kind for name, kind in REDUCTIONS.items() if kind.in_spec}

__all__ = ["REDUCTIONS", "SPEC_REDUCTIONS", "ReductionKind"]
