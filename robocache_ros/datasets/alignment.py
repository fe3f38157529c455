"""The streams of an episode at ticks: the operations that align recordings, applied to the samples of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.datasets.undecoded_images import UndecodedImages, side_by_side, undecoded_images
from robocache_ros.engine.frames import age_ms
from robocache_ros.errors import printable
from robocache_ros.formats.images import images_at, is_files
from robocache_ros.formats.read import DatasetError, SourceEpisode, Stream
from robocache_ros.ops.resample.cpu import blend_rows
from robocache_ros.ops.resample.selection import HELD, Rule, Selection, select
from robocache_ros.ops.tensor_checks import check_source

NO_LIMIT = np.iinfo(np.int64).max


class Aligned(NamedTuple):
    """A stream at T ticks."""

    values: Tensor  # (T, D) float32, or images (T, H, W, 3) uint8; zeros where there is none
    valid: Tensor  # (T,) uint8: 0 none, 1 aligned, 2 held
    age_ms: Tensor  # (T,) float32


KINDS = ("vision", "proprio", "actions", "rewards")


def method_of(stream: Stream, chosen: Mapping[str, str]) -> str:
    """Return the alignment of a stream: chosen by its name or kind, else the dataset's own, else that of its kind."""
    kind = "vision" if stream.is_image else {"observation": "proprio", "action": "actions"}.get(stream.role, "rewards")
    default = stream.align or ("linear" if kind == "proprio" else "hold")
    return chosen.get(stream.name) or chosen.get(kind) or default


def align_vectors(
    streams: Sequence[Stream], ticks_ns: NDArray[np.int64], methods: Mapping[str, str]
) -> dict[str, Aligned]:
    """Align streams of (K, D) float32 values to ticks, with the bits of `ops.fuse`.

    Args:
        streams: any number.
        ticks_ns: (T,) int64, in any order.
        methods: the alignment of each stream, by its name.

    Returns:
        The aligned streams by name.
    """
    if not streams:
        return {}
    found = {}
    for group in _groups(streams, methods):
        stream, method = group[0], methods[group[0].name]
        values = torch.from_numpy(
            np.concatenate([_vectors(each) for each in group], axis=1) if len(group) > 1 else _vectors(stream)
        )
        check_source(stream.name, values, method, dims=2)
        selected = _select(stream, ticks_ns, method)
        blended = blend_rows(values, selected.lower, selected.upper, selected.weight, method, torch.float32)
        column = 0
        for each in group:
            width = _vectors(each).shape[1]
            valid, age_ns = _of_export(each, ticks_ns, selected.valid, selected.age_ns)
            found[each.name] = _aligned(blended[:, column : column + width], valid, age_ns)
            column += width
    return found


def align_rows(
    stream: Stream, ticks_ns: NDArray[np.int64], method: str, where: str
) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.float32]]:
    """Return the image of each tick, (T,) int64 and -1 where there is none, and `valid` and `age_ms` of `Aligned`.

    Errors:
        DatasetError: the method blends.
    """
    if method not in ("hold", "nearest", "next"):
        raise DatasetError(f"{where}: {printable(stream.name, 40)}: images are not {method}; use hold, nearest or next")
    selected = _select(stream, ticks_ns, method)
    valid, age_ns = _of_export(stream, ticks_ns, selected.valid, selected.age_ns)
    return selected.lower, valid.copy(), age_ms(age_ns)


def _vectors(stream: Stream) -> NDArray[np.float32]:
    assert isinstance(stream.values, np.ndarray)
    return stream.values


def _groups(streams: Sequence[Stream], methods: Mapping[str, str]) -> list[list[Stream]]:
    """Group the streams whose columns are selected alike: they are fused as one, which takes less time."""
    groups: list[list[Stream]] = []
    for stream in streams:
        alike = (group for group in groups if _alike(group[0], stream, methods))
        group = next(alike, None)
        if group is None:
            groups.append([stream])
        else:
            group.append(stream)
    return groups


def _alike(first: Stream, second: Stream, methods: Mapping[str, str]) -> bool:
    if methods[first.name] != methods[second.name] or methods[first.name] == "slerp":  # which blends four columns
        return False
    limits = [(stream.max_gap_ns, stream.max_age_ns) for stream in (first, second)]
    plain = first.valid is None and second.valid is None
    return plain and limits[0] == limits[1] and np.array_equal(first.stamps_ns, second.stamps_ns)


def _select(stream: Stream, ticks_ns: NDArray[np.int64], method: str) -> Selection:
    """Select the samples of each tick, of those that are present."""
    max_gap, max_age = (NO_LIMIT if limit is None else limit for limit in (stream.max_gap_ns, stream.max_age_ns))
    rule = Rule(method, max_gap, max_age)
    if stream.valid is None or stream.valid.all():
        return select(stream.stamps_ns, ticks_ns, rule)
    present = np.flatnonzero(stream.valid)
    selected = select(stream.stamps_ns[present], ticks_ns, rule)
    if not len(present):
        return selected
    lower, upper = (np.where(rows >= 0, present[rows], -1) for rows in (selected.lower, selected.upper))
    return replace(selected, lower=lower, upper=upper)


def _of_export(
    stream: Stream, ticks_ns: NDArray[np.int64], valid: NDArray[np.uint8], age_ns: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the state and the age of the measurement, where the samples were themselves aligned by an export."""
    if stream.valid is None or stream.age_ns is None:
        return valid, age_ns
    found = valid > 0
    rows = np.searchsorted(stream.stamps_ns, ticks_ns - age_ns)[found]
    valid, age_ns = valid.copy(), age_ns.copy()
    valid[found] = np.where(stream.valid[rows] == HELD, HELD, valid[found])
    age_ns[found] += stream.age_ns[rows]
    return valid, age_ns


def _aligned(values: Tensor, valid: NDArray[np.uint8], age_ns: NDArray[np.int64]) -> Aligned:
    return Aligned(values, torch.from_numpy(valid.copy()), torch.from_numpy(age_ms(age_ns)))


@dataclass(frozen=True)
class Unaligned:
    """The streams of a sample and the ticks to which they are to be aligned.

    Attributes:
        episode: its streams, in the order of `valid`.
        methods: the alignment of each stream, by its name.
        ticks_ns: (T,) int64, rising; a tick may be repeated.
        action_ticks_ns: (H,) int64 such ticks of actions and rewards, if they have their own.
        flags: `is_pad` (T,) and `action_is_pad` (H,) bool, of windows.
        texts: such as `language`.
        n_images: the last ticks, of which images are wanted; None: all.
    """

    episode: SourceEpisode
    methods: Mapping[str, str]
    ticks_ns: NDArray[np.int64]
    action_ticks_ns: NDArray[np.int64] | None
    flags: Mapping[str, NDArray[np.bool_]]
    texts: Mapping[str, str]
    n_images: int | None = None


class AlignedEpisode:
    """The vectors of an episode at its T ticks, and which image each tick has. Images are decoded for windows alone.

    Each tick is aligned for itself, so that a window has the bits that aligning its ticks alone would give.

    Args:
        streams: in the order of `valid`.
        methods: the alignment of each stream, by its name.
        ticks_ns: (T,) int64.
        texts: such as `language`.
        success: whether the episode reached its aim, if known.
        where: file and record, for errors.

    Errors:
        DatasetError: the alignment of images blends.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        methods: Mapping[str, str],
        ticks_ns: NDArray[np.int64],
        texts: Mapping[str, str],
        success: bool | None,
        where: str,
    ) -> None:
        self._texts, self._where = dict(texts), where
        self._pictures = {stream.name: stream for stream in streams if stream.is_image}
        vectors = [stream for stream in streams if not stream.is_image]
        aligned = align_vectors(vectors, ticks_ns, methods)
        rows = {name: align_rows(stream, ticks_ns, methods[name], where) for name, stream in self._pictures.items()}
        self._image_rows = {name: each for name, (each, _, _) in rows.items()}  # (T,) of each stream
        marks = {
            **{name: (each.valid, each.age_ms) for name, each in aligned.items()},
            **{name: (torch.from_numpy(valid), torch.from_numpy(age)) for name, (_, valid, age) in rows.items()},
        }

        def columns(*roles: str) -> Tensor | None:
            chosen = [aligned[stream.name].values for stream in vectors if stream.role in roles]
            return torch.cat(chosen, dim=1) if chosen else None

        rewards, fused = columns("reward"), columns("observation", "action")
        # (T, ...) each: at the ticks of the observations, and at those of the actions.
        self._observed = {
            "proprio": columns("observation"),
            "fused": torch.zeros((len(ticks_ns), 0)) if fused is None else fused,
            "valid": torch.stack([marks[stream.name][0] for stream in streams], dim=1),
            "age_ms": torch.stack([marks[stream.name][1] for stream in streams], dim=1),
            "tick_ns": torch.from_numpy(ticks_ns),
        }
        self._acted = {"actions": columns("action"), "rewards": None if rewards is None else rewards[:, 0]}
        self._measured = [stream.measured for stream in streams]
        self._success = -1 if success is None else int(success)

    def rows(
        self,
        observed: NDArray[np.int64],
        acted: NDArray[np.int64],
        n_images: int | None = None,
        *,
        decode: bool = True,
    ) -> dict[str, Any]:
        """Return the sample of some ticks, (n,) `observed` and (m,) `acted`, as tensors and texts; see `windows`."""
        sample, texts = self.windows(observed, acted, n_images, decode=decode)
        return {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in sample.items()} | texts

    def windows(
        self,
        observed: NDArray[np.int64],
        acted: NDArray[np.int64],
        n_images: int | None = None,
        *,
        decode: bool = True,
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return samples at once: arrays (..., n) or (..., m), and their texts.

        Args:
            observed: (..., n) indices of the ticks of observations.
            acted: (..., m) those of actions and rewards.
            n_images: images of the last ones of `observed`; None: of all.
            decode: whether images of files are decoded; else they are `UndecodedImages`, of (n,) ticks only.

        Errors:
            DatasetError: an image is damaged.
        """
        found: dict[str, Any] = {
            key: values.numpy()[rows]
            for table, rows in ((self._observed, observed), (self._acted, acted))
            for key, values in table.items()
            if values is not None
        }
        pictures: dict[str, Any] = {}
        shown = observed if n_images is None else observed[..., -n_images:]
        for name, stream in self._pictures.items():
            rows = self._image_rows[name][shown].reshape(-1)
            undecoded = None if decode else undecoded_images(stream, rows, self._where)
            if undecoded is None:
                images = images_at(stream, rows, self._where)
                pictures[name] = images.reshape(*shown.shape, *images.shape[1:])
            else:
                pictures[name] = undecoded
        cameras = {name: each for name, each in pictures.items() if self._pictures[name].modality == "vision"}
        if len({images.shape for images in cameras.values()}) == 1:
            found["vision"] = _side_by_side(list(cameras.values()), observed.ndim)
            pictures = {name: images for name, images in pictures.items() if name not in cameras}
        lead = observed.shape[:-1]
        constants = {
            "measured": np.tile(self._measured, (*lead, 1)),
            "success": np.full(lead, self._success),
        }
        return {**found, **pictures, **constants}, dict(self._texts)

    @property
    def has_files(self) -> bool:
        """Whether it has images that are files."""
        return any(is_files(stream.values) for stream in self._pictures.values())


def _side_by_side(cameras: Sequence[NDArray[np.uint8] | UndecodedImages], axis: int) -> Any:
    """Return the images of cameras of one size as (..., n, C, H, W, 3)."""
    undecoded = [images for images in cameras if isinstance(images, UndecodedImages)]
    if len(undecoded) == len(cameras):
        return side_by_side(undecoded)
    decoded = [each.decoded() if isinstance(each, UndecodedImages) else each for each in cameras]
    return np.expand_dims(decoded[0], axis) if len(decoded) == 1 else np.stack(decoded, axis)
