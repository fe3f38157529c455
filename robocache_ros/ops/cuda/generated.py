"""Headers that are generated from Python when a kernel is compiled, so that no table is written twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from robocache_ros.alignments import NAMES, alignment


def alignment_table() -> str:
    """The text of resample/alignment_table.cuh: what kernels/resample/alignment.cuh makes types of."""
    found = [(name, alignment(name)) for name in NAMES]
    lines = ["#pragma once"]
    lines += [f'#include "resample/alignments/{name}.cuh"' for name, each in found if each.blends]
    entries = (f"BLENDS({n}, {each.group})" if each.blends else f"COPIES({n}, {each.selects})" for n, each in found)
    lines += [f"#define ALIGNMENTS(BLENDS, COPIES) {' '.join(entries)}"]
    return "\n".join([*lines, ""])


# The text of each generated header, by the path that kernels include it by.
GENERATED: Mapping[str, Callable[[], str]] = {"resample/alignment_table.cuh": alignment_table}
