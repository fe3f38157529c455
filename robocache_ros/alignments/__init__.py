"""How a stream's value at a tick is computed: one module per alignment, found by its file name.

A module defines `ALIGNMENT`. Where the alignment blends two samples, `kernels/resample/alignments/` has a header of the
same name for CUDA. The fusion spec, the operations, the kernels, the reference pages and the tests read this package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Float32: TypeAlias = "NDArray[np.float32]"
Float64: TypeAlias = "NDArray[np.float64]"
# The samples that a tick uses: the two around it, the newest one at or before it, the one nearest in time, or the first
# one at or after it.
Selects = Literal["neighbours", "newest", "nearest", "next"]


@dataclass(frozen=True)
class Alignment:
    """One alignment: which samples it uses, how it blends them, and what it accepts.

    `blend` is float32 arithmetic in NumPy. The CUDA header of the same name repeats it operation by operation, so that
    the CPU and the GPU give the same bits. It may use only + - * / and sqrt, which are correctly rounded everywhere.
    """

    meaning: str  # one line for the reference pages
    selects: Selects = "neighbours"
    blend: Callable[[Float32, Float32, Float32], Float32] | None = None  # (..., D) before, after; (..., 1) weight
    oracle: Callable[[Float64, Float64, float], Float64] | None = None  # (D,) before, after; share of `after`
    group: int = 1  # columns that are blended together: a power of two, up to 8
    values: str = "numbers"  # what a group of columns represents
    unit: str = ""  # required unit of the values; "" for any
    variant_of: str = ""  # the alignment whose place it takes for values in `unit`; a spec names that one
    default_of: tuple[str, ...] = ()  # kinds of stream (vector, image, cloud) that use it if the spec names none
    has_gradient: bool = False  # a tick's value is the sum of its samples, weighted by the selection

    @property
    def blends(self) -> bool:
        """Whether it computes a new value from two samples, instead of copying one."""
        return self.blend is not None


NAMES = tuple(sorted(module.name for module in iter_modules(__path__)))


@cache
def alignment(name: str) -> Alignment:
    """The alignment with this name, one of `NAMES`; KeyError for any other name."""
    if name not in NAMES:
        raise KeyError(name)
    found: Alignment = import_module(f"{__name__}.{name}").ALIGNMENT
    return found


def in_unit(name: str, unit: str) -> str:
    """The name of the alignment `name` for values in a unit: of `angle` with deg, `angle_deg`."""
    variants = (each for each in NAMES if alignment(each).variant_of == name and alignment(each).unit == unit)
    return min(variants, default=name)


def units_of(name: str) -> tuple[str, ...]:
    """The units that an alignment accepts, its own first; empty for any."""
    variants = (each.unit for each in map(alignment, NAMES) if each.variant_of == name)
    return tuple(filter(None, (alignment(name).unit, *variants)))


@cache
def spec_alignments() -> tuple[str, ...]:
    """The names that a spec gives; the unit of a stream then chooses among variants."""
    return tuple(name for name in NAMES if not alignment(name).variant_of)


@cache
def default_alignment(kind: str) -> str:
    """The name of the alignment for streams of a kind (vector, image or cloud) if the spec names none."""
    # The built-in `next` is not usable here: an imported module of this package is an attribute of the package.
    return {each: name for name in NAMES for each in alignment(name).default_of}[kind]
