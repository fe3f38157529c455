"""The values that a policy would see, of a recording or of a live node, against those of its training.

A column is compared with its range in the training. Where the recording has commands and the policy is one of this
package, the policy also predicts them: a mistake in the observations shows in its error, and the change of the columns
that removes the error is named. A policy of LeRobot is not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from robocache_ros.bags.fuse import BagRun
from robocache_ros.bags.reader import Bag
from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.exporter.preview import match
from robocache_ros.policy.doctor import ERROR, OK, UNCHECKED, WARNING, Finding, stream_of
from robocache_ros.policy.trained_facts import TrainedFacts
from robocache_ros.spec import IMAGENET, FusionSpec, Layout
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.storage.paths import AnyPath
from robocache_ros.training.policies.make_policy import tick_noise
from robocache_ros.training.trained_policy import TrainedPolicy
from robocache_ros.units import NS_PER_MS

Float32: TypeAlias = "NDArray[np.float32]"
Float64: TypeAlias = "NDArray[np.float64]"

MAX_TICKS = 15_000  # of a recording; five minutes at 50 Hz
IMAGES = 16  # of a stream that are looked at
MIN_TICKS = 10  # below it, a recording shows nothing
FACTORS = {  # by which a value is multiplied to be as in training
    180 / np.pi: "radians, and degrees in training",
    np.pi / 180: "degrees, and radians in training",
    1000.0: "1000 times smaller than in training",
    1e-3: "1000 times larger than in training",
    100.0: "100 times smaller than in training",
    1e-2: "100 times larger than in training",
}
ORDERS = {"w x y z, and x y z w": (1, 2, 3, 0), "x y z w, and w x y z": (3, 0, 1, 2)}  # of quaternions
NEAR, FAR, VERY_FAR = 0.05, 0.25, 1.0  # beyond the range of a column, in parts of it
SHIFTED = (-0.5, -0.25, -0.125, 0.125, 0.25, 0.5)  # zeros that are tried, in parts of the range
MAX_OUTSIDE_SHARE = 0.2  # of the values of a column that may be beyond its range
PREDICTIONS, MIN_PREDICTIONS = 16, 4  # ticks at which a policy predicts
MAX_CHANGES = 300  # of columns that are tried
# Errors of the predictions: in parts of that of the mean command, and in parts of that without a change.
GOOD, BAD = 0.15, 0.5
LESS, NEARLY = 0.6, 0.85  # a change, or another tick, explains the error
LESS_IF_FIT = 0.5  # so does a change that is fitted to the range, as any value within it makes the error less
SHIFTS = range(-10, 11)


@dataclass
class Observed:
    """Values of T ticks, of the streams of a spec.

    Attributes:
        side: `in the recording`, or `in the node`.
        spec: of the streams.
        values: (T, D) float32 by vector stream, zero where there is none.
        valid: (T,) uint8 by stream.
        age_ms: (T,) by stream.
        images: (3, H, W) by image stream and tick.
    """

    side: str
    spec: FusionSpec
    values: dict[str, Float32]
    valid: dict[str, NDArray[np.uint8]]
    age_ms: dict[str, Float32]
    images: dict[str, dict[int, torch.Tensor]] = field(default_factory=dict)

    @property
    def ticks(self) -> int:
        """T."""
        return len(next(iter(self.valid.values()), ()))


def used_streams(facts: TrainedFacts, spec: FusionSpec) -> FusionSpec | None:
    """Return a spec with the streams that the policy uses alone, for a recording need not have others; None: none."""
    pairs = (pair for role in ("observation", "action") for pair in stream_of(facts, spec, role))
    names = {pair[0].name for pair in pairs if pair} | set(facts.images)
    kept = tuple(stream for stream in spec.streams if stream.name in names)
    is_any = any(stream.role == "observation" for stream in kept)
    return replace(spec, streams=kept, dataset=None, run=None) if is_any else None


def label_visibility(facts: TrainedFacts) -> str:
    """Return the visibility of the commands in the export of the training."""
    dataset = facts.spec.dataset if facts.spec else None
    return (dataset or DatasetOptions()).visibility


def observe_bag(
    path: AnyPath, spec: FusionSpec, visibility: str = DatasetOptions.visibility
) -> tuple[Observed | None, list[Finding]]:
    """Fuse a recording as the robot would have, and its commands as an export, and return its values.

    A command that is stamped too early is late: where late samples are not used, an older one takes its place, which
    hides the wrong stamp.

    Args:
        path: of the recording.
        spec: with the streams that are read.
        visibility: of the commands.

    Errors:
        RoboCacheError: the recording cannot be read.
    """
    side, found = "in the recording", list[Finding]()
    with Bag(path) as bag:
        wrong = {each.stream.partition("/")[0]: each.problems[0] for each in match(bag, spec) if each.problems}
        for name, problem in wrong.items():
            what, _, advice = problem.rpartition("; ")
            level = UNCHECKED if spec.stream(name).role == "action" else ERROR
            found.append(Finding(level, f"streams.{name}", "used", printable(what, 100), side, advice))
        kept = tuple(stream for stream in spec.streams if stream.name not in wrong)
        if not any(stream.role == "observation" for stream in kept):
            return None, found
        spec = replace(spec, streams=kept)
        run = BagRun(bag, spec, visibility="deployed", trim=False)
        count = min(sum(run.ticks_of_spans), MAX_TICKS)
        wanted = {int(tick) for tick in np.linspace(0, count - 1, IMAGES + 2)[1:-1]}
        parts, tick = [], 0
        images: dict[str, dict[int, torch.Tensor]] = {stream.name: {} for stream in spec.media}
        for part in run.frames():
            for at in wanted & set(range(tick, tick + len(part))):
                for row, stream in enumerate(spec.streams):
                    if stream.name in images and part.valid[at - tick, row]:
                        images[stream.name][at] = part.media[stream.name][at - tick].clone()
            parts.append((part.fused.numpy(), part.valid, part.age_ns))
            tick += len(part)
            if tick >= MAX_TICKS:
                break
        layout, (fused, valid, age_ns) = Layout(spec), (np.concatenate(each) for each in zip(*parts, strict=True))
        if actions := tuple(stream for stream in spec.streams if stream.role == "action"):
            alone = replace(spec, streams=actions)
            columns = np.concatenate([np.arange(fused.shape[1])[layout.slots[stream.name]] for stream in actions])
            streams = [layout.names.index(stream.name) for stream in actions]
            labels = BagRun(bag, alone, visibility=visibility, trim=False, timeline=run.timeline)
            commands = _commands(labels, run.ticks_of_spans, len(fused))
            fused[:, columns], valid[:, streams], age_ns[:, streams] = commands
    cut = _within(valid)
    fused, valid, age_ns = fused[cut], valid[cut], age_ns[cut]
    return Observed(
        side,
        spec,
        {name: fused[:, slot] for name, slot in layout.slots.items()},
        {name: valid[:, row] for row, name in enumerate(layout.names)},
        {name: (age_ns[:, row] / NS_PER_MS).astype(np.float32) for row, name in enumerate(layout.names)},
        {n: {at - cut.start: i for at, i in of.items() if cut.start <= at < cut.stop} for n, of in images.items()},
    ), found


def _commands(
    run: BagRun, ticks_of_spans: list[int], count: int
) -> tuple[Float32, NDArray[np.uint8], NDArray[np.int64]]:
    """Return values (T, D), validity and age (T, N) of commands at the first `count` ticks of another run.

    Args:
        run: of the streams of the commands; each of its spans has the ticks of the other's, and may have more.
        ticks_of_spans: of the other run.
        count: T.
    """
    firsts = np.cumsum([0, *run.ticks_of_spans[:-1]])
    rows = np.concatenate([first + np.arange(n) for first, n in zip(firsts, ticks_of_spans, strict=True)])[:count]
    parts, ticks = [], 0
    for part in run.frames():
        parts.append((part.fused.numpy(), part.valid, part.age_ns))
        ticks += len(part)
        if ticks > rows[-1]:
            break
    fused, valid, age_ns = (np.concatenate(each)[rows] for each in zip(*parts, strict=True))
    return fused, valid, age_ns


def _within(valid: NDArray[np.uint8]) -> slice:
    """Return the ticks from which all streams have begun until one has ended, if these are most of (T, N) ticks."""
    there = [np.flatnonzero(column) for column in valid.T if column.any()]
    first = max((int(each[0]) for each in there), default=0)
    stop = min((int(each[-1]) + 1 for each in there), default=0)
    return slice(first, stop) if stop - first >= max(MIN_TICKS, len(valid) / 2) else slice(0, len(valid))


def observe_frames(frames: Iterable[FusedFrame], every: int = 1) -> Observed:
    """Return the values of frames of a node. Each is copied, so that its memory is free for the next one.

    Args:
        frames: in their order.
        every: ticks from one image that is kept to the next.

    Errors:
        RoboCacheError: no frame came from the node.
    """
    rows: dict[str, list[Float32]] = {}
    marks: dict[str, list[tuple[int, float]]] = {}
    images: dict[str, dict[int, torch.Tensor]] = {}
    layout: Layout | None = None
    for tick, frame in enumerate(frames):
        layout = frame.layout
        if layout is None:
            break
        for name, valid in frame.valid.items():
            marks.setdefault(name, []).append((int(valid[-1]), float(frame.age_ns[name][-1]) / NS_PER_MS))
        for name, value in frame.tensors.items():
            if layout.spec.stream(name).kind == "vector":
                rows.setdefault(name, []).append(value[-1].reshape(-1).cpu().numpy().copy())
            elif tick % every == 0 and frame.valid[name][-1]:
                images.setdefault(name, {})[tick] = value.cpu().clone()
    if layout is None:
        raise RoboCacheError("live: no tick of the node came; start it, or give its name with --fusion")
    return Observed(
        "in the node",
        layout.spec,
        {name: np.stack(each) for name, each in rows.items()},
        {name: np.array([valid for valid, _ in each], np.uint8) for name, each in marks.items()},
        {name: np.array([age for _, age in each], np.float32) for name, each in marks.items()},
        images,
    )


class Columns:
    """Columns of the training with the values that were observed.

    Attributes:
        names: of them, such as `gripper.left`.
        streams: of each.
        role: observation or action.
        values: (T, K) float64, NaN where there is none.
        complete: whether all columns of the training are there.
        low, high: (K,) the range of each in training; empty if it is not known.
    """

    def __init__(self, facts: TrainedFacts, observed: Observed, role: str) -> None:
        pairs = stream_of(facts, observed.spec, role)
        columns, places = list[Float64](), list[int]()
        self.role, self.names, self.streams = role, list[str](), list[str]()
        for place, pair in enumerate(pairs):
            if pair is None or not observed.valid.get(pair[0].name, np.empty(0)).any():
                continue
            stream, index = pair
            values = observed.values[stream.name][:, index].astype(np.float64)
            columns.append(np.where(observed.valid[stream.name] > 0, values, np.nan))
            self.names.append(f"{stream.name}.{[*stream.components, *map(str, range(stream.width))][index]}")
            self.streams.append(stream.name)
            places.append(place)
        self.values: Float64 = np.stack(columns, 1) if columns else np.empty((observed.ticks, 0))
        self.complete = len(places) == len(pairs) and bool(pairs)
        low, high = _range(facts.statistics.get("state" if role == "observation" else "action", {}))
        known = len(low) == len(high) == len(pairs) and bool(np.isfinite([low, high]).all())
        self.low, self.high = (each[places] if known else np.empty(0) for each in (low, high))

    def of(self, stream: str) -> list[int]:
        """Return the columns of a stream."""
        return [i for i, name in enumerate(self.streams) if name == stream]

    def range_of(self, column: int) -> str:
        """Return the range of a column as text."""
        low, high = float(self.low[column]), float(self.high[column])
        return " to ".join(f"{0.0 if abs(end) < 1e-4 * (high - low) else end:.3g}" for end in (low, high))

    def distance(self, values: Float64, at: Sequence[int]) -> float:
        """Return how far values are from the middles of the ranges of some columns, in parts of the ranges."""
        middle, span = (self.low[at] + self.high[at]) / 2, self.high[at] - self.low[at]
        return float(np.nanmean(np.minimum(np.abs(values[:, at] - middle) / span, 1.0)))

    def outside(self, values: Float64, beyond: float) -> NDArray[np.bool_]:
        """Return for each of K columns whether more than `MAX_OUTSIDE_SHARE` of it is outside its range.

        Args:
            values: (T, K), NaN where there is none.
            beyond: how far outside, in parts of the range.
        """
        margin = beyond * (self.high - self.low)
        with np.errstate(invalid="ignore"):
            out = (values < self.low - margin) | (values > self.high + margin)
        known = np.isfinite(values).sum(0)
        return np.asarray(out.sum(0) > MAX_OUTSIDE_SHARE * np.maximum(known, 1))


def _range(statistics: dict[str, Float64]) -> tuple[Float64, Float64]:
    """Return the smallest and the largest value of each column in training, or where nearly all of them were."""
    if "min" in statistics and "max" in statistics:
        low, high = statistics["min"], statistics["max"]
        middle = (low + high) / 2
    elif "mean" in statistics and "std" in statistics:
        middle, std = statistics["mean"], statistics["std"]
        spread = np.where(std == 1.0, 0.0, 3 * std)  # a column that does not change has the std 1 in a checkpoint
        low, high = middle - spread, middle + spread
    else:
        return np.empty(0), np.empty(0)
    least = np.maximum(0.05 * np.abs(middle), 1e-3)  # of a column that did not change
    narrow = high - low < least
    return np.where(narrow, middle - least / 2, low), np.where(narrow, middle + least / 2, high)


class Change(NamedTuple):
    """A change of columns that makes them as in training: those of `source` times `scale`, plus `shift`.

    Attributes:
        text: what is wrong without it.
        advice: what to do.
        role: observation or action.
        columns: that change.
        source: the columns that are read for them.
        is_fit: whether it is fitted to the range of the training, in which the columns are then in any case.
    """

    text: str
    advice: str
    role: str
    columns: tuple[int, ...]
    source: tuple[int, ...]
    scale: float = 1.0
    shift: float = 0.0
    is_fit: bool = False

    def apply(self, values: Float64) -> Float64:
        """Return all columns, (T, K), with the change."""
        changed: Float64 = values.copy()
        changed[:, self.columns] = values[:, self.source] * self.scale + self.shift
        return changed


def changes(columns: Columns) -> Iterator[Change]:
    """Return the mistakes that are known from robots, the likelier ones first."""
    role, names = columns.role, columns.names
    for stream in dict.fromkeys(columns.streams):
        at = tuple(columns.of(stream))
        for factor, text in FACTORS.items():
            yield Change(f"{stream} is {text}", "convert it in the driver", role, at, at, factor)
        for text, order in ORDERS.items() if len(at) == 4 else ():
            source, advice = tuple(at[i] for i in order), "list its fields in the order of the training"
            yield Change(f"{stream} is {text} in training", advice, role, at, source)
        for i, j in combinations(at, 2):
            text = f"{names[i]} and {names[j].rpartition('.')[2]} are swapped"
            yield Change(text, "use the order of the training", role, (i, j), (j, i))
        for i in at:
            low, high = (float(end(columns.values[:, i])) for end in (np.nanmin, np.nanmax))
            yield Change(f"{names[i]} has the other sign", "invert it in the driver", role, (i,), (i,), -1.0)
            advice = "exchange its ends, such as open and closed"
            yield Change(f"{names[i]} is mirrored in its range", advice, role, (i,), (i,), -1.0, low + high)
            if len(columns.low) and high > low:
                first, text = float(columns.low[i]), f"{names[i]} has another range"
                scale = (float(columns.high[i]) - first) / (high - low)
                advice = f"map {low:.3g} to {high:.3g} to that of the training, {columns.range_of(i)}"
                yield Change(text, advice, role, (i,), (i,), scale, first - low * scale, is_fit=True)


def shifts(columns: Columns) -> Iterator[Change]:
    """Return other zeros of each column."""
    for i, name in enumerate(columns.names if len(columns.low) else ()):
        for part in SHIFTED:
            by = part * float(columns.high[i] - columns.low[i])
            text, advice = f"{name} has another zero, off by about {-by:.2g}", "calibrate it, or set `offset`"
            yield Change(text, advice, columns.role, (i,), (i,), shift=by, is_fit=True)


def check_values(
    facts: TrainedFacts, observed: Observed, policy: TrainedPolicy | None = None, offset: int = 0
) -> list[Finding]:
    """Compare observed values with those of the training.

    Args:
        facts: of the checkpoint.
        observed: of a recording or a node.
        policy: the checkpoint, if it is one of this package; it then predicts the commands of the recording.
        offset: ticks from an observation to the first row of its chunk.
    """
    if observed.ticks < MIN_TICKS:
        return [Finding(UNCHECKED, "values", f"{observed.ticks} ticks are too few; give a longer recording")]
    found = [*_validity(facts, observed), *_pictures(facts, observed)]
    state, actions = (Columns(facts, observed, role) for role in ("observation", "action"))
    why = "a policy of LeRobot is not run"
    if policy is not None:
        why = "" if actions.complete else f"no commands {observed.side}"
        why = why if state.complete else "an observation is missing"
    if why or policy is None:
        predicted, cause = Finding(UNCHECKED, "predictions", f"commands are not compared: {why}"), None
    else:
        try:
            predicted, cause = Prediction(policy, observed, state, actions, offset).finding()
        except RoboCacheError as error:  # of an image or a value that the policy refuses
            predicted, cause = Finding(UNCHECKED, "predictions", f"the policy refuses the values ({error})"), None
    ranges = [_ranges(columns, observed.side, cause) for columns in (state, actions)]
    is_named = cause is not None and any(cause.text in each.advice for part in ranges for each in part)
    return [*found, *ranges[0], *ranges[1], *(() if is_named else (predicted,))]


def _validity(facts: TrainedFacts, observed: Observed) -> Iterator[Finding]:
    """Compare how often streams have a value, and how old it is."""
    period_ms = 1000 / observed.spec.rate_hz
    for name in [stream.name for stream in observed.spec.streams if stream.role == "observation"]:
        valid = observed.valid[name] > 0
        known = facts.samples.get(name, {})
        share, before = float(valid.mean()), float(known.get("valid", 1.0))
        thing, text = f"streams.{name}", f"valid at {before:.0%} of ticks"
        if share < before - 0.1:
            level = ERROR if share < before / 2 else WARNING
            advice = "see why with robocache check; a sample later than delay_ms is not used"
            yield Finding(level, thing, text, f"{share:.0%}", observed.side, advice)
            continue
        age_ms = float(np.median(observed.age_ms[name][valid])) if valid.any() else 0.0
        stale, trained = f"{thing}: age", known.get("age_ms")
        if trained is not None and age_ms > trained + 1.5 * period_ms:
            advice = "look for a delay in the driver, or set latency_ms"
            yield Finding(WARNING, stale, f"{trained:.0f} ms", f"{age_ms:.0f} ms", observed.side, advice)
        else:
            yield Finding(OK, thing, text, f"{share:.0%}, {age_ms:.0f} ms old", observed.side)


def _pictures(facts: TrainedFacts, observed: Observed) -> Iterator[Finding]:
    """Compare the size, the brightness and the order of channels of images."""
    for name, about in facts.images.items():
        shown, thing = list(observed.images.get(name, {}).values()), f"streams.{name}"
        if not shown:
            yield Finding(UNCHECKED, thing, f"no image {observed.side}")
            continue
        size = list(shown[0].shape[-2:])
        if about.get("size") and size != about["size"]:
            advice = f"set image: {{size: {about['size']}}}"
            yield Finding(ERROR, f"{thing}: size", str(about["size"]), str(size), observed.side, advice)
        pixels = torch.stack([image.float().mean((1, 2)) for image in shown])
        spread = torch.stack([image.float().std() for image in shown])
        scale = 255.0 if shown[0].dtype == torch.uint8 else 1.0
        if (spread < 0.01 * scale).float().mean() > 0.5:
            text = f"one colour, {pixels.mean() / scale:.2f} of 1"
            advice = "look at the image: lens cap, exposure, another encoding"
            yield Finding(ERROR, thing, "pictures", text, observed.side, advice)
            continue
        mean, known = (pixels.mean(0) / scale).numpy(), np.array(about.get("mean", ()))
        if len(known) != 3 or np.allclose(known, IMAGENET[0], atol=1e-4):  # what LeRobot normalises by, not the data's
            yield Finding(UNCHECKED, f"{thing}: colours", "the checkpoint does not know those of its images")
            continue
        off, swapped = (float(np.abs(each - known).mean()) for each in (mean, mean[::-1]))
        old, new = (" ".join(f"{value:.2f}" for value in each) for each in (known, mean))
        if off > 0.03 and swapped < 0.4 * off:
            advice = "red and blue are swapped: correct the encoding of the messages"
            yield Finding(ERROR, f"{thing}: colours", old, new, observed.side, advice)
        elif off > 0.2:
            advice = "look at the image: exposure, light, another range of values"
            yield Finding(WARNING, f"{thing}: colours", old, new, observed.side, advice)
        else:
            yield Finding(OK, f"{thing}: colours", old, new, observed.side)


def _ranges(columns: Columns, side: str, cause: Change | None) -> list[Finding]:
    """Report columns that are far outside of their range in training, and the change that explains it."""
    found: list[Finding] = []
    if not len(columns.low):
        return found
    far, very = (columns.outside(columns.values, beyond) for beyond in (FAR, VERY_FAR))
    for stream in dict.fromkeys(columns.streams):
        at = columns.of(stream)
        wrong = [i for i in at if far[i]]
        for i in () if wrong else _frozen(columns, at):
            text = columns.range_of(i)
            value, advice = f"always {columns.values[0, i]:.3g}", "see if it is read from the right field"
            found.append(Finding(WARNING, columns.names[i], text, value, side, advice))
        if not wrong:
            found.append(Finding(OK, f"{stream}: values", f"{len(at)} columns", "in their ranges", side))
            continue
        tried = islice(changes(columns), MAX_CHANGES)
        known = [each for each in tried if set(each.columns) & set(wrong) and not each.is_fit]
        known = [each for each in known if not columns.outside(each.apply(columns.values), NEAR)[at].any()]
        best = min(known, key=lambda each: columns.distance(each.apply(columns.values), at), default=None)
        if cause is not None and cause.role == columns.role and set(cause.columns) & set(wrong):
            best = cause
        i = wrong[0]
        trained = f"{columns.names[i]} from {columns.range_of(i)}"
        median = float(np.nanmedian(columns.values[:, i]))
        value = f"median {median:.3g}"
        if columns.low[i] <= median <= columns.high[i]:
            low, high = np.nanmin(columns.values[:, i]), np.nanmax(columns.values[:, i])
            value = f"{low:.3g} to {high:.3g}"
        advice = f"{best.text}: {best.advice}" if best else "see if it is another unit, zero or column"
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        level = ERROR if very[wrong].any() or best is not None else WARNING
        found.append(Finding(level, f"{stream}: values{more}", trained, value, side, advice))
    return found


def _frozen(columns: Columns, at: Sequence[int]) -> list[int]:
    """Return the columns that do not change, although others of the stream do, and they did in training."""
    with np.errstate(invalid="ignore"):
        moves = np.nanmax(columns.values, 0) - np.nanmin(columns.values, 0)
    span = columns.high - columns.low
    moving = [i for i in at if moves[i] > 0.1 * span[i]]
    return [i for i in at if moves[i] == 0 and span[i] > 2e-3] if len(moving) > len(at) / 2 else []


@dataclass(eq=False)
class Prediction:
    """What a policy predicts from a recording, against the commands in it."""

    policy: TrainedPolicy
    observed: Observed  # the recording
    state: Columns
    actions: Columns
    offset: int  # ticks from an observation to the first row of its chunk

    def __post_init__(self) -> None:
        scale = self.policy.info.statistics["actions"]
        self._std, self._mean = np.array(scale["std"]), np.array(scale["mean"])
        first = self.policy.policy.config.n_obs - 1 + SHIFTS.stop
        last = self.observed.ticks - self.policy.policy.config.horizon - abs(self.offset) - SHIFTS.stop
        ticks = set(range(first, last))
        for names in self.policy.info.images.values():
            for name in names:
                ticks &= set(self.observed.images.get(name, ()))
        known = np.array(sorted(ticks), np.int64)
        self.ticks = known[np.unique(np.linspace(0, len(known) - 1, PREDICTIONS).astype(int))] if len(known) else known

    def finding(self) -> tuple[Finding, Change | None]:
        """Compare predictions and commands; return also the change of columns that explains their distance."""
        if len(self.ticks) < MIN_PREDICTIONS:
            return Finding(UNCHECKED, "predictions", "the recording is too short for chunks of the policy"), None
        side, values, commands = self.observed.side, self.state.values, self.actions.values
        plain = self._predict(values)
        errors = {shift: self._error(plain, commands, shift) for shift in SHIFTS}
        best = min(errors, key=lambda shift: errors[shift])
        error, of_mean = errors[0], self._error(np.broadcast_to(self._mean, plain.shape), commands)
        cause = self._cause(plain, error, GOOD * of_mean) if error > GOOD * of_mean else None
        if cause is not None:
            least, change = cause
            level = WARNING if change.is_fit and error < BAD * of_mean else ERROR
            advice = f"{change.text}: {change.advice}"
            found = f"{error:.2f}, and {least:.2f} if it is corrected"
            return Finding(
                level, "predictions", "commands are predicted", f"with the error {found}", side, advice
            ), change
        text = f"with the error {error:.2f}, and {of_mean:.2f} by the mean command"
        level, advice = OK, ""
        if abs(best) > 1 and errors[best] < NEARLY * error:
            level, advice = WARNING, "compare offset, latency_ms and the delays of the drivers with the training"
            text = f"best those {abs(best)} ticks {'later' if best > 0 else 'earlier'}"
        elif error > BAD * of_mean:
            level, advice = WARNING, "give a recording of the task of the training, or compare the observations"
        return Finding(level, "predictions", "commands are predicted", text, side, advice), None

    def _cause(self, plain: Float32, error: float, good: float) -> tuple[float, Change] | None:
        """Return the change after which the error is least, if it is much less; other zeros if none makes it good."""
        tried: list[tuple[float, Change]] = []
        for given in (changes, shifts):
            tried += [
                (self._error(self._predict(change.apply(self.state.values)), self.actions.values), change)
                for change in islice(given(self.state), MAX_CHANGES)
            ]
            tried += [
                (self._error(plain, change.apply(self.actions.values)), change)
                for change in islice(given(self.actions), MAX_CHANGES)
            ]
            least, change = min(tried, key=lambda each: each[0])
            if least < good:
                break
        return (least, change) if least < (LESS_IF_FIT if change.is_fit else LESS) * error else None

    def _predict(self, values: Float64) -> Float32:
        """Return (N, horizon, A) actions from changed columns of the state."""
        policy, observed = self.policy, self.observed
        rows = self.ticks[:, None] + np.arange(1 - policy.policy.config.n_obs, 1)
        proprio = torch.from_numpy(np.nan_to_num(values)[rows].astype(np.float32))
        valid = torch.from_numpy(np.stack([observed.valid[name] for name in policy.info.streams], 1)[rows])
        images: dict[str, torch.Tensor] | None = None
        if policy.info.cameras:
            frames = [{name: shown[tick] for name, shown in observed.images.items()} for tick in self.ticks.tolist()]
            each = [policy.images(frame) for frame in frames]
            images = {key: torch.cat([one[key] for one in each]) for key in policy.info.cameras}
        noise = torch.cat([tick_noise(policy.policy.config, tick) for tick in self.ticks.tolist()])
        return policy.act(proprio, valid, images, noise).cpu().numpy()

    def _error(self, predicted: NDArray[np.floating], commands: Float64, shift: int = 0) -> float:
        """Return the mean distance of commands from predictions, in standard deviations of the training."""
        rows = self.ticks[:, None] + self.offset + shift + np.arange(predicted.shape[1])
        wanted = commands[np.clip(rows, 0, len(commands) - 1)]
        gone = np.logical_or.accumulate(np.isnan(wanted).any(2), 1)  # those after a gap may be of another episode
        wanted[gone] = np.nan
        return float(np.nanmean(np.abs(predicted - wanted) / self._std))
