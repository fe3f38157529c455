"""The messages of one stream of a recording of the fused stream: stamps, validity, ages and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.export.formats.mcap.plot_messages import message_dtype
from robocache_ros.export.validate.array_values import stamps_disagree
from robocache_ros.export.validate.findings import Findings
from robocache_ros.spec import StreamSpec
from robocache_ros.units import NS_PER_S


class StreamMessages(NamedTuple):
    """The messages of a stream, one per tick."""

    stamps_ns: NDArray[np.int64]  # (T,) 0 where there is no value
    valid: NDArray[np.uint8]  # (T,)
    age_ms: NDArray[np.float32]  # (T,)
    values: NDArray[np.float32]  # (T, K); of a window the ages of its samples, and then the samples by component


def check_stream(
    findings: Findings, where: str, stream: StreamSpec, messages: Sequence[bytes]
) -> StreamMessages | None:
    """Check the messages of a vector stream, or of the status of an image or voxel stream.

    Args:
        findings: collects what is wrong.
        where: the recording and the topic.
        stream: the stream.
        messages: one per tick.

    Returns:
        What they contain; None if the messages cannot be read.
    """
    components = len(stream.components) if stream.kind == "vector" else 0
    dtype = message_dtype(stream.rows + components * max(stream.rows, 1))
    wrong = [row for row, message in enumerate(messages) if len(message) != dtype.itemsize]
    text = f"{len(wrong)} messages have not {dtype.itemsize} bytes, the first is row {wrong[:1]}"
    if not findings.check(not wrong, where, text):
        return None
    table = np.frombuffer(b"".join(messages), dtype)
    valid = table["valid"]
    stamps: NDArray[np.int64] = table["sec"].astype(np.int64) * NS_PER_S + table["nanosec"]
    _none(findings, where, ~np.isin(valid, (0, 1, 2)), "valid is not 0, 1 or 2")
    _none(findings, where, stamps_disagree(stamps, valid), "valid and the stamp disagree")
    _none(findings, where, ~np.isfinite(table["age_ms"]), "age_ms is NaN or infinite")
    if stream.kind == "vector":
        values = table["values"]
        has = valid > 0
        if stream.rows:
            has = values[:, : stream.rows] >= 0  # the ages of the samples; padding is negative
            has = np.broadcast_to(has[:, None], (len(table), components, stream.rows)).reshape(len(table), -1)
            values = values[:, stream.rows :]
        else:
            has = np.broadcast_to(has[:, None], values.shape)
        _none(findings, where, (has & ~np.isfinite(values)).any(axis=1), "a value is NaN or infinite")
        _none(findings, where, (~has & ~np.isnan(values)).any(axis=1), "a value that is missing is not NaN")
    return StreamMessages(stamps, valid, table["age_ms"], table["values"])


def _none(findings: Findings, where: str, wrong: NDArray[np.bool_], what: str) -> None:
    """Report in how many rows something is wrong."""
    findings.check(not wrong.any(), where, f"{what} in {int(wrong.sum())} rows, the first is row {wrong.argmax()}")
