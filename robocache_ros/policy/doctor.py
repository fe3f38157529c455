"""What would make a trained policy see or do something else than in its training, found before a robot moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.policy.lerobot_config import ACTION, IMAGES, MODES, STATE, LeRobotConfig
from robocache_ros.policy.outputs import Outputs, run_offset
from robocache_ros.policy.trained_facts import Column, TrainedFacts
from robocache_ros.spec import FusionSpec, Layout, StreamSpec
from robocache_ros.spec.keys import suggestion
from robocache_ros.spec.run import RunOptions

ERROR, WARNING, OK, UNCHECKED = "error", "warning", "ok", "not checked"
LEVELS = (ERROR, WARNING, OK, UNCHECKED)  # in the order in which they are printed
# The keys of a stream on which its values depend, and how bad another one is.
STREAM_KEYS = {
    **dict.fromkeys(("field", "unit", "offset", "samples", "reduce"), ERROR),
    **dict.fromkeys(("align", "stamp", "latency_ms", "max_gap_ms", "max_age_ms", "on_invalid", "fill"), WARNING),
}
IMAGE_KEYS = {"size": ERROR, "crop": ERROR, "resize": WARNING}
SHOWN = 60  # characters of a value


@dataclass(frozen=True)
class Finding:
    """What was compared, and how it came out.

    Attributes:
        level: one of LEVELS.
        thing: what was compared, such as `rate_hz` or `streams.gripper.unit`.
        trained: of the training.
        found: on the other side.
        side: the other side: `in the spec`, `in the recording`, `on this machine`.
        advice: what to do.
    """

    level: str
    thing: str
    trained: str
    found: str = ""
    side: str = "in the spec"
    advice: str = ""

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        if self.level == OK and self.trained == self.found:
            return f"{self.thing}: {self.trained} in training and {self.side}"
        found = f", {self.found} {self.side}" if self.found else ""
        return f"{self.thing}: {self.trained}{' in training' if found else ''}{found}{advice}"


def compared(thing: str, trained: object, found: object, advice: str, level: str = ERROR) -> Finding:
    """Return the finding of two values, of the training and in the spec, that shall be equal."""
    old, new = printable(_shown(trained), SHOWN), printable(_shown(found), SHOWN)
    return Finding(OK, thing, old, new) if trained == found else Finding(level, thing, old, new, advice=advice)


def _named(spec: FusionSpec, name: str) -> StreamSpec | None:
    return next((stream for stream in spec.streams if stream.name == name), None)


def _shown(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(str, value))}]"
    return "none" if value in (None, "") else f"{value:g}" if isinstance(value, float) else str(value)


def check_spec(facts: TrainedFacts, spec: FusionSpec, device: str = "cpu") -> list[Finding]:
    """Compare what a checkpoint was trained on with a spec, and with this machine."""
    return [
        *_timing(facts, spec),
        *_observations(facts, spec),
        *_images(facts, spec),
        *_actions(facts, spec),
        *_plan(facts, spec),
        *_device(facts, device),
        *(_normalisation(facts.lerobot) if facts.lerobot else ()),
        *(Finding(UNCHECKED, *note.split(": ", 1)) for note in facts.notes),
    ]


def _timing(facts: TrainedFacts, spec: FusionSpec) -> Iterator[Finding]:
    if facts.rate_hz is not None:
        yield compared("rate_hz", facts.rate_hz, spec.rate_hz, f"set rate_hz: {facts.rate_hz}")
    if facts.n_obs > spec.horizon:
        seen = f"{facts.n_obs} ticks are observed"
        yield Finding(ERROR, "horizon", seen, str(spec.horizon), advice=f"set horizon: {facts.n_obs}")
    else:
        yield Finding(OK, "horizon", f"{facts.n_obs} observed of a window of {spec.horizon}")
    if facts.spec is None:
        return
    for key in ("delay_ms", "lead_ms"):
        old, new = (getattr(each, key) for each in (facts.spec, spec))
        yield compared(key, old, new, f"set {key}: {old:g}, or the samples of a tick are others", WARNING)


def stream_of(facts: TrainedFacts, spec: FusionSpec, role: str) -> list[tuple[StreamSpec, int] | None]:
    """Return for each column of the state or the actions the stream of a spec and its column; None: it has none.

    Actions, and columns of the state whose streams are not known, go by their place.
    """
    vectors = Layout(spec).vectors_of(role)
    by_place = [(stream, index) for stream in vectors for index in range(stream.dim)]
    if role == "action":
        return [by_place[i] if i < len(by_place) else None for i in range(len(facts.action))]
    by_name = {stream.name: stream for stream in spec.vectors if stream.role == role}
    found: list[tuple[StreamSpec, int] | None] = []
    counts: Counter[str] = Counter()
    for place, (name, _) in enumerate(facts.state):
        if facts.lerobot is not None or not name:
            found.append(by_place[place] if place < len(by_place) else None)
            continue
        stream, index = by_name.get(name), counts[name]
        counts[name] += 1
        found.append((stream, index) if stream is not None and index < stream.width else None)
    return found


def _observations(facts: TrainedFacts, spec: FusionSpec) -> Iterator[Finding]:
    if facts.lerobot is not None:
        yield from _by_place("state", facts.state, Layout(spec).vectors_of("observation"))
        known = {STATE, *(key for key in facts.lerobot.inputs if key.startswith(IMAGES))}
        windows = {f"observation.window.{stream.name}" for stream in spec.vectors if stream.rows}
        for key in sorted(facts.lerobot.inputs.keys() - known - windows):
            yield Finding(
                ERROR, printable(key, 60), "an input", "none", advice="a frame has no such feature; train again"
            )
        shared: Sequence[str] = [s.name for s in Layout(spec).vectors_of("observation")] if facts.spec else []
    else:
        shared = list(dict.fromkeys(column.stream for column in facts.state))
        for name in shared:
            yield _stream(facts, spec, name)
    for name in shared:
        yield from _keys(facts, spec, name)


def _stream(facts: TrainedFacts, spec: FusionSpec, name: str) -> Finding:
    """Compare the columns of a stream that the policy observes."""
    thing, names = f"streams.{name}", [column.name for column in facts.state if column.stream == name]
    found = _named(spec, name)
    width = f"{len(names)} columns"
    if found is None:
        others = [s for s in spec.vectors if s.name not in {column.stream for column in facts.state}]
        alike = [s.name for s in others if s.role == "observation" and list(s.components) == names]
        hint = f"rename {alike[0]}" if alike else suggestion(name, [s.name for s in others])
        return Finding(ERROR, thing, width, "no such stream", advice=hint or "add the stream of the training")
    if found.kind != "vector" or found.role != "observation":
        what = f"{found.kind}, {found.role}"
        return Finding(ERROR, thing, "vector, observation", what, advice="give the stream of the training")
    if len(names) != found.width:
        return Finding(ERROR, thing, width, f"{found.width}", advice="read the same columns as in training")
    if all(names) and not found.rows and names != list(found.components):
        order = "in this order" if sorted(names) == sorted(found.components) else "of these"
        advice = f"list the columns {order}, by `names` or `field`"
        return compared(f"{thing}: columns", names, list(found.components), advice)
    return Finding(OK, f"{thing}: columns", width, width)


def _keys(facts: TrainedFacts, spec: FusionSpec, name: str) -> Iterator[Finding]:
    """Compare the keys of a stream on which its values depend."""
    old, new = (_named(each, name) if each else None for each in (facts.spec, spec))
    if old is None or new is None:
        return
    # Without a unit nothing is known of it; fields of other types or columns are compared by their columns.
    uncompared = {"unit"} if "" in (old.unit, new.unit) else set()
    if (old.type, old.components) != (new.type, new.components):
        uncompared.add("field")
    different = [
        compared(
            f"streams.{name}.{key}", getattr(old, key), getattr(new, key), _as_before(key, getattr(old, key)), level
        )
        for key, level in STREAM_KEYS.items()
        if getattr(old, key) != getattr(new, key) and key not in uncompared
    ]
    what = "field, unit, alignment, stamps and limits"
    yield from different or [Finding(OK, f"streams.{name}", what, what)]


def _as_before(key: str, value: object) -> str:
    return f"set {key}: {_shown(value)}" if value not in (None, "", ()) else f"leave {key} out"


def _by_place(what: str, columns: Sequence[Column], streams: Sequence[StreamSpec]) -> Iterator[Finding]:
    """Compare columns that a policy knows by their place with those of streams."""
    found = [Column(stream.name, name) for stream in streams for name in stream.components]
    if len(found) != len(columns):
        listed = " and ".join(stream.name for stream in streams) or "no stream"
        text = f"{len(found)} ({listed})"
        yield Finding(
            ERROR, what, f"{len(columns)} columns", text, advice="use the streams of the training, in its order"
        )
        return
    wrong = [(i, old, new) for i, (old, new) in enumerate(zip(columns, found, strict=True)) if not _may_be(old, new)]
    if wrong:
        place, old, new = wrong[0]
        text = " ".join(filter(None, (old.stream, old.name)))
        advice = f"list streams and columns as in training; {len(wrong)} of {len(columns)} differ"
        yield Finding(ERROR, f"{what}: column {place}", text, f"{new.stream} {new.name}", advice=advice)
    else:
        yield Finding(OK, f"{what}: columns", f"{len(columns)}", f"{len(columns)}")


def _may_be(old: Column, new: Column) -> bool:
    names = (new.name, f"{new.stream}.{new.name}")
    return old.stream in ("", new.stream) and (not old.name or old.name.isdigit() or old.name in names)


def _images(facts: TrainedFacts, spec: FusionSpec) -> Iterator[Finding]:
    for name, about in facts.images.items():
        thing = f"streams.{name}"
        found = _named(spec, name)
        if found is None or found.image is None:
            images = [s.name for s in spec.streams if s.kind == "image"]
            hint = (
                f"name an image {name}; there are {', '.join(images)}" if images else "add the camera of the training"
            )
            yield Finding(ERROR, thing, "an image", "none" if found is None else found.kind, advice=hint)
            continue
        before = _named(facts.spec, name) if facts.spec else None
        trained = before and before.image
        if (size := about.get("size")) and (found.image.size or trained is None):
            advice = f"set image: {{size: {_shown(size)}}}"
            yield compared(f"{thing}.image.size", list(size), list(found.image.size or ()), advice)
        for key, level in IMAGE_KEYS.items() if trained else ():
            old, new = getattr(trained, key), getattr(found.image, key)
            if old != new and not (key == "size" and size and new):
                yield compared(f"{thing}.image.{key}", old, new, _as_before(key, old), level)
        yield from _keys(facts, spec, name)


def _actions(facts: TrainedFacts, spec: FusionSpec) -> Iterator[Finding]:
    streams = Layout(spec).vectors_of("action")
    if not streams:
        yield Finding(ERROR, "actions", f"{len(facts.action)} columns", "no stream", advice="give one `role: action`")
        return
    yield from _by_place("actions", facts.action, streams)
    for name in dict.fromkeys(column.stream for column in facts.action if column.stream):
        yield from _keys(facts, spec, name)
    kinds = [facts.spec.dataset.action] if facts.spec and facts.spec.dataset else []
    labels = [s.label for s in facts.spec.streams if s.role == "action"] if facts.spec else []
    if any("delta" in kind for kind in (*kinds, *labels)):
        yield Finding(ERROR, "actions", "deltas", "positions", advice="deltas are not sent; train on absolute commands")
    if facts.action_offset is None:
        yield Finding(UNCHECKED, "action_offset", "not known of the training; a recording with commands shows it")
    else:
        advice = f"set offset: {facts.action_offset} in the section run"
        yield compared("action_offset", facts.action_offset, run_offset(spec, spec.run or RunOptions()), advice)
    try:
        Outputs(spec, (spec.run or RunOptions()).without_urdfs())
    except RoboCacheError as error:
        yield Finding(ERROR, "run", "the policy gives commands", "not possible", advice=str(error).splitlines()[0])


def _plan(facts: TrainedFacts, spec: FusionSpec) -> Iterator[Finding]:
    """Compare the rows of a chunk with the ticks until the next one."""
    if not facts.horizon:
        yield Finding(UNCHECKED, "run", f"the rows of a chunk of {printable(facts.kind, 40)} are not known")
        return
    run = spec.run or RunOptions()
    rows, period_ms = facts.horizon - run.execute_from, 1000 / spec.rate_hz
    spare = rows - run.replan_every
    text, found = f"{facts.horizon} rows in a chunk", f"replan_every {run.replan_every}"
    if run.execute_from:
        found += f", execute_from {run.execute_from}"
    if spare >= 0:
        yield Finding(OK, "run", text, f"{found}, so a plan may take {spare * period_ms:g} ms")
        return
    level, what = (ERROR, "the run stops") if -spare > run.coast_ticks else (WARNING, "the last command is repeated")
    advice = f"{what} before the next plan; set replan_every: {max(1, rows // 2)} or less"
    yield Finding(level, "run", text, found, advice=advice)


def _device(facts: TrainedFacts, device: str) -> Iterator[Finding]:
    where, trained = "on this machine", printable(facts.device, 20) or "not known"
    try:
        wanted = torch.device(device)
    except RuntimeError:
        raise RoboCacheError(f"device: {printable(device, 40)} is not a device; give cpu, cuda or cuda:0") from None
    if wanted.type == "cuda":
        count = torch.cuda.device_count()
        if (wanted.index or 0) >= count:
            yield Finding(
                ERROR, "device", trained, f"{device} asked for, {count} there are", where, "give --device cpu"
            )
            return
    elif trained.startswith("cuda"):
        advice = "measure how long a plan takes, or give --device cuda"
        yield Finding(WARNING, "device", trained, device, where, advice)
        return
    yield Finding(OK, "device", trained, device, where)


def check_node(spec: FusionSpec, node: FusionSpec) -> list[Finding]:
    """Compare the streams of a spec with those that a node fuses."""
    keys = (*STREAM_KEYS, "names", "image")
    pairs = [(stream, _named(node, stream.name)) for stream in spec.streams]
    other = [a.name for a, b in pairs if b is None or any(getattr(a, key) != getattr(b, key) for key in keys)]
    if (spec.rate_hz, spec.delay_ms) != (node.rate_hz, node.delay_ms):
        other.append("rate_hz or delay_ms")
    if not other:
        return []
    text = f"the node has another one: {printable(', '.join(other), SHOWN)}"
    return [Finding(ERROR, "spec", text, advice="start the node with this spec")]


def _normalisation(config: LeRobotConfig) -> Iterator[Finding]:
    """Check the statistics of a checkpoint of LeRobot; those of this package are checked when it is read."""
    side = "in the checkpoint"
    for key, mode in config.modes.items():
        found, thing = config.statistics.get(key, {}), f"normalisation of {printable(key, 50)}"
        if mode not in MODES or key not in (*config.inputs, ACTION):
            continue
        if missing := [name for name in MODES[mode] if name not in found]:
            advice = "copy policy_preprocessor* and policy_postprocessor* with the checkpoint"
            yield Finding(ERROR, thing, mode, f"no {missing[0]}", side, advice)
            continue
        low, high = (found[name] for name in MODES[mode])
        width = config.action if key == ACTION else config.inputs[key][0]
        if not len(low) == len(high) == width:
            text = f"{len(low)} and {len(high)} numbers"
            yield Finding(ERROR, thing, f"{width} columns", text, side, "get the checkpoint again")
            continue
        spread = high if mode == "MEAN_STD" else high - low
        correct = np.isfinite(low) & np.isfinite(spread) & (spread >= 0)
        if not correct.all():
            column = int(np.argmin(correct))
            text = f"{MODES[mode][0]} {low[column]:g}, {MODES[mode][1]} {high[column]:g} of column {column}"
            yield Finding(ERROR, thing, mode, text, side, "train again on data with finite values")
        elif (spread == 0).any():
            text = f"columns {_shown(np.flatnonzero(spread == 0).tolist())} did not change"
            advice = "any other value is scaled by 1e8: train without them, or keep them exactly as in training"
            yield Finding(WARNING, thing, mode, text, side, advice)
        else:
            yield Finding(OK, thing, mode, "finite", side)


def summary(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as plain values for JSON, and how many there are of each level."""
    counts = {level.replace(" ", "_"): sum(each.level == level for each in findings) for level in LEVELS}
    ordered = [each for level in LEVELS for each in findings if each.level == level]
    return {"counts": counts, "findings": [{**vars(each)} for each in ordered]}
