"""What a checkpoint was trained on, of this package's training or of LeRobot's, as the same facts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.columns import export_columns
from robocache_ros.formats.lerobot import schema
from robocache_ros.formats.lerobot.read import column_labels
from robocache_ros.formats.read import read_object
from robocache_ros.policy.lerobot_config import ACTION, IMAGES, STATE, LeRobotConfig, read_lerobot_config
from robocache_ros.spec import FusionSpec, Layout, load_spec
from robocache_ros.training.checkpoints import read_checkpoint
from robocache_ros.untrusted_files import file_below

Float64: TypeAlias = "NDArray[np.float64]"


class Column(NamedTuple):
    """A column of the state or of the actions; empty names are not known.

    A column of the state without a stream is the one at the same place of all observations of a spec.
    """

    stream: str
    name: str


@dataclass(frozen=True)
class TrainedFacts:
    """What a checkpoint knows of its training. None, an empty text or an empty mapping is not known.

    Attributes:
        kind: such as `transformer`, or `act of LeRobot`.
        state, action: columns, in the order of the policy.
        images: by stream: `size`, `mean` and `std` of the channels in 0..1, as far as they are known.
        n_obs: ticks that are observed.
        horizon: rows of a chunk.
        rate_hz: of the ticks.
        action_offset: ticks from an observation to the first row.
        spec: of the export.
        device: of the training.
        statistics: of `state` and `action`, by name such as mean and max, (columns,) each.
        samples: by stream: `valid`, the share of ticks with a value, and `age_ms`.
        lerobot: what a checkpoint of LeRobot states.
        notes: what cannot be read.
    """

    kind: str
    state: tuple[Column, ...]
    action: tuple[Column, ...]
    images: dict[str, dict[str, Any]]
    n_obs: int
    horizon: int
    rate_hz: int | None = None
    action_offset: int | None = None
    spec: FusionSpec | None = None
    device: str = ""
    statistics: dict[str, dict[str, Float64]] = field(default_factory=dict)
    samples: dict[str, dict[str, Any]] = field(default_factory=dict)
    lerobot: LeRobotConfig | None = None
    notes: tuple[str, ...] = ()


def trained_facts(path: str | Path) -> TrainedFacts:
    """Read what a checkpoint was trained on.

    Args:
        path: a `checkpoint.pt`, or the folder of a checkpoint of LeRobot.

    Errors:
        RoboCacheError: it is missing, damaged, or of another kind.
    """
    if not os.path.exists(path):  # of any text
        raise RoboCacheError(
            f"checkpoint: {printable(path, 60)} is not a file or folder; give a checkpoint.pt or a folder of LeRobot "
            "(what functions and servers were trained on is not known)"
        )
    return _of_lerobot(read_lerobot_config(path)) if os.path.isdir(path) else _of_checkpoint(path)


def _of_checkpoint(path: str | Path) -> TrainedFacts:
    _, policy, info, arguments = read_checkpoint(path)
    spec, notes = _spec(info.spec)
    own = arguments.get("action_offset") if info.action_offset is None else info.action_offset
    statistics = {
        name: {
            key: np.array(values) for part in (info.statistics, info.ranges) for key, values in part.get(of, {}).items()
        }
        for name, of in (("state", "proprio"), ("action", "actions"))
    }
    actions = [Column(s, name) for s, names in info.columns.items() if s not in info.streams for name in names]
    return TrainedFacts(
        policy.kind,
        tuple(Column(s, n) for s, width in info.streams.items() for n in info.columns.get(s) or [""] * width),
        tuple(actions if len(actions) == info.actions else [Column("", "")] * info.actions),
        {name: dict(info.samples.get(name, {})) for names in info.images.values() for name in names},
        policy.n_obs,
        policy.horizon,
        info.rate_hz,
        _offset(spec, own if type(own) is int else None),
        spec,
        str(arguments.get("device", "")),
        statistics,
        info.samples,
        notes=notes,
    )


def _spec(raw: Mapping[str, Any]) -> tuple[FusionSpec | None, tuple[str, ...]]:
    if not raw:
        return None, ("spec: the checkpoint does not have that of its dataset; train again on an export",)
    try:
        return load_spec(raw), ()
    except RoboCacheError as error:
        return None, (f"spec: that of the checkpoint cannot be read ({str(error).splitlines()[0]})",)


def _offset(spec: FusionSpec | None, own: int | None) -> int | None:
    """Return the ticks from an observation to its first action: those of the labels, and those of the training."""
    if spec is None or own is None:
        return None
    return own + (spec.dataset.offset_ticks(spec.rate_hz) if spec.dataset else 0)


def _of_lerobot(config: LeRobotConfig) -> TrainedFacts:
    widths = {STATE: (*config.inputs.get(STATE, ()), 0)[0], ACTION: config.action}
    rate_hz, spec, labels, notes = _dataset(config.dataset, widths)

    def columns(key: str, role: str) -> tuple[Column, ...]:
        streams = Layout(spec).vectors_of(role) if spec else ()
        known = [Column(stream.name, component) for stream in streams for component in stream.components]
        if len(known) == widths[key]:
            return tuple(known)
        return tuple(Column("", name) for name in labels.get(key) or [""] * widths[key])

    images: dict[str, dict[str, Any]] = {}
    for name in config.cameras:
        found = config.statistics.get(IMAGES + name, {})
        pixels = {key: found[key].tolist() for key in ("mean", "std") if len(found.get(key, ())) == 3}
        images[name] = {"size": list(config.inputs[IMAGES + name][1:]), **pixels}
    return TrainedFacts(
        f"{config.type} of LeRobot",
        columns(STATE, "observation"),
        columns(ACTION, "action"),
        images,
        config.observed_ticks,
        config.horizon,
        rate_hz,
        _offset(spec, 0),
        spec,
        config.device,
        {"state": config.statistics.get(STATE, {}), "action": config.statistics.get(ACTION, {})},
        lerobot=config,
        notes=notes,
    )


def _dataset(
    path: str, widths: Mapping[str, int]
) -> tuple[int | None, FusionSpec | None, dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return rate, spec and names of columns of the dataset of the training, if its folder is on this machine."""
    folder = Path(path)
    if not path or not (folder / schema.INFO).is_file():
        return None, None, {}, ("rate_hz, columns: not known without the dataset of the training on this machine",)
    info = read_object(file_below(folder, schema.INFO))
    features = info["features"] if isinstance(info.get("features"), dict) else {}
    labels = {key: column_labels(features.get(key) or {}, width) for key, width in widths.items()}
    rate_hz = int(info["fps"]) if isinstance(info.get("fps"), (int, float)) else None
    if not (folder / schema.PROVENANCE).is_file():
        return rate_hz, None, labels, ("spec: the dataset of the training is not an export of this project",)
    provenance = read_object(file_below(folder, schema.PROVENANCE))
    spec, notes = _spec(export_columns(provenance, schema.PROVENANCE).spec)
    return rate_hz, spec, labels, notes
