"""An episode aligned at all of its ticks, of which windows are rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.datasets.aligned import align_rows, align_vectors
from robocache_ros.datasets.episode_source import Stream
from robocache_ros.datasets.image_decoding import images_at, is_files
from robocache_ros.datasets.undecoded_images import UndecodedImages, side_by_side, undecoded_images


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

    def rows(self, observed: NDArray[np.int64], acted: NDArray[np.int64], *, decode: bool = True) -> dict[str, Any]:
        """Return the sample of some ticks.

        Args:
            observed: (n,) indices of the ticks of observations.
            acted: (m,) those of actions and rewards.
            decode: whether images of files are decoded; else they are `UndecodedImages`.

        Errors:
            DatasetError: an image is damaged.
        """
        places = torch.from_numpy(observed), torch.from_numpy(acted)
        sample: dict[str, Any] = {
            key: values.index_select(0, index)
            for table, index in zip((self._observed, self._acted), places, strict=True)
            for key, values in table.items()
            if values is not None
        }
        pictures = {
            name: self._images(stream, self._image_rows[name][observed], decode=decode)
            for name, stream in self._pictures.items()
        }
        cameras = {name: each for name, each in pictures.items() if self._pictures[name].modality == "vision"}
        if len({images.shape for images in cameras.values()}) == 1:
            sample["vision"] = _side_by_side(list(cameras.values()))
            pictures = {name: images for name, images in pictures.items() if name not in cameras}
        constants = {"measured": torch.tensor(self._measured), "success": torch.tensor(self._success)}
        return {**sample, **pictures, **constants, **self._texts}

    def windows(self, observed: NDArray[np.int64], acted: NDArray[np.int64]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return B samples at once: arrays (B, ...) in the order of `rows`, and their texts.

        Args:
            observed: (B, n) indices of the ticks of observations.
            acted: (B, m) those of actions and rewards.

        Errors:
            DatasetError: an image is damaged.
        """
        found: dict[str, Any] = {
            key: values.numpy()[rows]
            for table, rows in ((self._observed, observed), (self._acted, acted))
            for key, values in table.items()
            if values is not None
        }
        pictures = {}
        for name, stream in self._pictures.items():
            images = images_at(stream, self._image_rows[name][observed].reshape(-1), self._where)
            pictures[name] = images.reshape(*observed.shape, *images.shape[1:])
        cameras = {name: each for name, each in pictures.items() if self._pictures[name].modality == "vision"}
        if len({images.shape for images in cameras.values()}) == 1:
            found["vision"] = np.stack(list(cameras.values()), axis=2)
            pictures = {name: images for name, images in pictures.items() if name not in cameras}
        count = len(observed)
        constants = {"measured": np.tile(self._measured, (count, 1)), "success": np.full(count, self._success)}
        return {**found, **pictures, **constants}, dict(self._texts)

    @property
    def has_files(self) -> bool:
        """Whether it has images that are files."""
        return any(is_files(stream.values) for stream in self._pictures.values())

    def _images(self, stream: Stream, rows: NDArray[np.int64], *, decode: bool) -> Tensor | UndecodedImages:
        undecoded = None if decode else undecoded_images(stream, rows, self._where)
        return torch.from_numpy(images_at(stream, rows, self._where)) if undecoded is None else undecoded


def _side_by_side(cameras: Sequence[Tensor | UndecodedImages]) -> Tensor | UndecodedImages:
    """Return the images of cameras of one size as (n, C, H, W, 3)."""
    undecoded = [images for images in cameras if isinstance(images, UndecodedImages)]
    if len(undecoded) == len(cameras):
        return side_by_side(undecoded)
    images = [torch.from_numpy(each.decoded()) if isinstance(each, UndecodedImages) else each for each in cameras]
    return images[0][:, None] if len(images) == 1 else torch.stack(images, dim=1)
