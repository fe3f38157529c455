"""Latencies of cameras and actions, and the drift of clocks, measured from a recording.

**Latency of a camera.** What changes between two frames is explained by how far the joints moved between them. The mean
absolute difference of two small grey frames is therefore correlated with the paths of the joints between the times of
both frames less a lag, for all lags; the lag with the largest correlation is the latency. This is the cross-correlation
of Knapp and Carter (The Generalized Correlation Method for Estimation of Time Delay, IEEE TASSP 24, 1976), as cameras
and inertial sensors are synchronised (Mair et al., Spatio-Temporal Initialization for IMU to Camera Registration, ROBIO
2011; Kelly and Sukhatme, A General Framework for Temporal Calibration of Multiple Sensors, ISER 2010).

- Positions are interpolated at the times of the frames, so that neither has to be resampled, and frames may be lost.
- Joints move the image by different amounts, and together by more or less than one by one. The change is therefore
  modelled as a quadratic form of their motion dq over its length, dq' G dq / |dq|, with the best G for each lag (a
  multiple correlation). The length of dq alone is biased, by 5 to 10 ms in rendered images of an arm whose gripper
  follows faster than its shoulder.
- The recording is divided into blocks of 1 to 3 s. Means are removed within blocks, so that slow changes of the light
  and of the distance do not count.
- The peak is interpolated by a parabola, on a grid of 5 ms.
- The interval is that of the bootstrap over blocks (Carlstein, The Use of Subseries Values for Estimating the Variance,
  Ann. Stat. 14, 1986): blocks are drawn with replacement 200 times, and 90 % of their peaks are inside of it.

**Latency of actions.** The same correlation, of the steps from a command to the next with the motion of the joints
after a lag: by column where commands and positions have as many columns, else as for a camera.

**Drift.** (log time - stamp) is the difference of two clocks plus a delay that is never negative. Its minimum in each
of up to 100 windows follows a line, whose slope is estimated by Theil and Sen (Sen, Estimates of the Regression
Coefficient Based on Kendall's Tau, JASA 63, 1968), which gives the interval too.

A quantity that the recording does not determine is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.clocks import Timeline, Times, clock_of
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.stats import Recorder, read_timeline
from robocache_ros.decode import DecodeError, decode_compressed, make_decoder
from robocache_ros.decode.payloads import ImagePayload
from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.spec import JOINT_TYPE, FusionSpec, StreamSpec
from robocache_ros.units import NS_PER_MS, NS_PER_S

Float64 = NDArray[np.float64]

LARGEST_LAG_S = 0.5  # of a latency
SEARCHED_S = 1.5  # lags that are looked at, to see whether the motion is periodic
COARSE_S, FINE_S, NEAR_S = 0.02, 0.005, 0.1  # steps of the lags; lags around the peak that are refined
MIN_ROWS, MIN_S = 100, 7.5  # intervals between frames, and their time
MAX_S = 600.0  # of a recording that is read
BLOCKS, SHORTEST_BLOCK_S, LONGEST_BLOCK_S = 16, 1.0, 3.0
RESAMPLES, COVERAGE = 200, 0.9
MAX_RIVAL = 0.93  # of the largest correlation, that of another peak; irregular motion has at most 0.85, a sine 0.97
NOT_NOISE = 0.8  # a larger correlation at several lags comes from a period
MAX_FAR_SHARE = 0.05  # resamples whose peak is somewhere else
MAX_WIDTH_S = 0.05  # of an interval
EXACT_S = 2e-4  # of the interpolation, on both sides
GAP_INTERVALS = 3  # longer times between frames, in median intervals, are not used
MAX_COLUMNS, ROWS_PER_WEIGHT = 8, 20  # the joints that move most
CONTRAST = 0.7  # exponent of the change of images, which saturates
LEAST_LENGTH = 1e-2  # of a motion, in standard deviations
SMOOTH_S = 0.03
STILL = 8.0  # standard deviations of the noise that a range must exceed
ROWS, COLUMNS = 48, 64  # least size of the small images
RIDGE = 1e-3  # of the weights, relative to the mean variance
DRIFT_WINDOWS, MIN_DRIFT_WINDOWS, MIN_DRIFT_S = 100, 20, 20.0
LARGEST_SCATTER_NS = 50 * NS_PER_MS  # around the line of a drift
LARGEST_DRIFT = 1e-3  # of a clock: ten times what the worst quartz has
NOTICED_NS = NS_PER_MS  # that a clock on the timeline moved
Z = 1.645  # of the coverage

SHORT = "record 60 s of irregular motion"
NO_JOINTS = "no joint positions that change; name a stream of positions with --joints"


class RefusedError(RoboCacheError):
    """A quantity that a recording does not determine: `<what is wrong>; <what to do>`."""


@dataclass(frozen=True)
class Measurement:
    """A measured quantity, or why it is not measured.

    Attributes:
        quantity: `latency`, `action_latency` or `drift`.
        name: the stream; of a drift, the topic.
        against: the stream or clock it is relative to.
        unit: `ms` or `ppm`.
        value, low, high: the estimate and its 90 % interval; NaN if refused. A latency is positive if the stream is
            late. A drift is how much faster the clock of the log runs, as `device_skew_ppm`.
        correlation: of the signals at this lag, 0 to 1; NaN of a drift and of codes.
        samples: frames, commands or messages that were used.
        current: value in the spec; None of a drift.
        refused: why there is no value, and what to do; empty if there is one.
    """

    quantity: str
    name: str
    against: str
    unit: str
    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    correlation: float = np.nan
    samples: int = 0
    current: float | None = None
    refused: str = ""


@dataclass(frozen=True)
class Calibration:
    """What a recording says about latencies and clocks; `notes` has a line for each loss."""

    spec: FusionSpec
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...] = ()

    def patch(self) -> dict[str, Any]:
        """Return the keys of the spec that the measurements change, as a mapping; empty if there are none."""
        found = [m for m in self.measurements if not m.refused and m.unit == "ms"]
        streams = {m.name: {"latency_ms": round(m.value, 1)} for m in found if m.quantity == "latency"}
        # A run has one latency. It cannot be negative: such commands were recorded after their effect.
        actions = [m for m in found if m.quantity == "action_latency" and m.value >= 0]
        best = max(actions, key=lambda m: (self.spec.stream(m.name).dim, m.correlation), default=None)
        run = {"run": {"action_latency_ms": round(best.value, 1)}} if best else {}
        return {**({"streams": streams} if streams else {}), **run}


class Signal(NamedTuple):
    """Samples of a stream in the order of their times.

    times_s: (N,) seconds since the start of the recording, increasing; values: (N, D).
    """

    times_s: Float64
    values: Float64

    def at(self, times_s: Float64) -> Float64:
        """Return (M, D) values between samples."""
        return np.stack([np.interp(times_s, self.times_s, column) for column in self.values.T], axis=1)

    def smooth(self) -> Signal:
        """Return means over SMOOTH_S: else values between samples have less noise, and their lags are favoured."""
        period_s = float(np.median(np.diff(self.times_s)))
        reach = round(SMOOTH_S / period_s / 2) if period_s else 0
        if not 0 < reach < len(self.times_s):
            return self
        padded = np.pad(self.values, ((reach + 1, reach), (0, 0)), mode="edge")
        sums = np.cumsum(padded - self.values[0], axis=0)
        width = 2 * reach + 1
        return self._replace(values=(sums[width:] - sums[:-width]) / width + self.values[0])


class Lag(NamedTuple):
    """A lag and its interval in seconds, and the correlation at it."""

    value: float
    low: float
    high: float
    correlation: float
    samples: int


def camera_lag(times_s: Float64, change: Float64, joints: Signal) -> Lag:
    """Return how late frames are, against joints.

    Args:
        times_s: (N,) times of frames, increasing.
        change: (N - 1,) how much each frame differs from the one before it.
        joints: positions.

    Errors:
        RefusedError: the signals do not determine a lag.
    """
    moving = _moving(joints, len(change), "frame")
    return _lag(times_s, change[:, None] ** CONTRAST, _paths(moving, times_s, -1), moving.times_s, "frame")


def _paths(joints: Signal, times_s: Float64, sign: int) -> Callable[[float], Float64]:
    """Return a function from a lag to what the joints moved between times plus or minus the lag: (N, 1, F)."""
    first, second = np.triu_indices(joints.values.shape[1])
    scale = np.diff(joints.at(times_s), axis=0).std(axis=0) + 1e-12

    def moved(lag_s: float) -> Float64:
        steps = np.diff(joints.at(times_s + sign * lag_s), axis=0) / scale
        length = np.linalg.norm(steps, axis=1, keepdims=True) + LEAST_LENGTH
        products: Float64 = steps[:, first] * steps[:, second] / length
        return products[:, None]

    return moved


def action_lag(commands: Signal, joints: Signal, *, rates: bool = False) -> Lag:
    """Return how late joints follow commands.

    Args:
        commands: targets.
        joints: positions; if they have as many columns as the commands, each follows the command of its column.
        rates: commands are velocities, which last until the next command.

    Errors:
        RefusedError: the signals do not determine a lag.
    """
    moving = _moving(joints, len(commands.times_s) - 1, "command")
    steps = np.diff(commands.values, axis=0)
    if rates:
        steps = commands.values[:-1] * np.diff(commands.times_s)[:, None]
    scale = steps.std(axis=0)
    used = scale > 1e-9 * scale.max(initial=1e-300)
    if not used.any():
        raise RefusedError("the commands do not change; record commands that move the robot")
    if steps.shape[1] != joints.values.shape[1]:
        target = np.linalg.norm(steps, axis=1, keepdims=True)
        return _lag(commands.times_s, target, _paths(moving, commands.times_s, 1), moving.times_s, "command")
    state = joints.smooth()

    def followed(lag_s: float) -> Float64:
        path = np.diff(state.at(commands.times_s + lag_s), axis=0)
        scaled: Float64 = path[:, used] / scale[used]
        return scaled[:, :, None]

    return _lag(commands.times_s, steps[:, used] / scale[used], followed, state.times_s, "command")


def _moving(joints: Signal, rows: int, what: str) -> Signal:
    """Return the columns that move more than their noise: those that move most, as many as some rows determine."""
    values = joints.values
    if rows < MIN_ROWS:
        raise RefusedError(f"{number_of(rows + 1, what)}, {MIN_ROWS + 1} are needed; {SHORT}")
    if len(values) < MIN_ROWS:
        raise RefusedError(f"{len(values)} samples of the joints; {SHORT}")
    low, high = np.quantile(values, [0.01, 0.99], axis=0)
    # The second difference of noise has sqrt(6) times its deviation; that of motion is small.
    noise = np.median(np.abs(np.diff(values, 2, axis=0)), axis=0) / (0.6745 * 6**0.5)
    still = high - low <= np.maximum(STILL * noise, 1e-6)
    if still.all():
        raise RefusedError("the joints stand still; record while the robot moves")
    most = next(n for n in range(MAX_COLUMNS, 0, -1) if n == 1 or n * (n + 1) / 2 * ROWS_PER_WEIGHT <= rows)
    order = np.argsort(-np.where(still, 0, high - low), kind="stable")[: min(most, int((~still).sum()))]
    return joints._replace(values=values[:, np.sort(order)]).smooth()


def _lag(times_s: Float64, target: Float64, features: Callable[[float], Float64], known_s: Float64, what: str) -> Lag:
    """Return the lag at which features have the largest multiple correlation with a target.

    Args:
        times_s: (N + 1,) ends of the intervals.
        target: (N, K) in each interval.
        features: lag in s -> (N, K, F).
        known_s: times of the samples behind the features.
        what: name of a sample of the target.
    """
    lengths, starts = np.diff(times_s), times_s[:-1]
    typical = float(np.median(lengths)) if len(lengths) else 0.0
    used = lengths <= GAP_INTERVALS * typical
    used &= (starts >= known_s[0] + LARGEST_LAG_S) & (times_s[1:] <= known_s[-1] - LARGEST_LAG_S)
    count, seconds = int(used.sum()), float(lengths[used].sum())
    if count < MIN_ROWS:
        raise RefusedError(f"{count} {what}s while the joints are known, {MIN_ROWS} are needed; {SHORT}")
    if seconds < MIN_S:
        raise RefusedError(f"{seconds:.1f} s of {what}s while the joints are known, {MIN_S:g} s are needed; {SHORT}")
    if not np.ptp(target[used]):
        raise RefusedError(f"no {what} differs from the one before it; check the topic")
    block_s = float(np.clip(seconds / BLOCKS, SHORTEST_BLOCK_S, LONGEST_BLOCK_S))
    firsts = np.unique(np.floor((starts[used] - starts[used][0]) / block_s), return_index=True)[1]
    sums = _BlockSums(firsts, target[used])
    coarse = np.arange(-SEARCHED_S, SEARCHED_S + COARSE_S / 2, COARSE_S)
    every = sums.of([features(lag)[used] for lag in coarse.tolist()])
    ones = np.ones((len(firsts), 1))
    best = _clear_peak(coarse, every.correlations(ones)[:, 0])
    drawn = np.random.default_rng(0).multinomial(len(firsts), np.full(len(firsts), 1 / len(firsts)), RESAMPLES)
    weights = drawn.T.astype(np.float64)
    redrawn = coarse[np.argmax(every.correlations(weights), axis=0)]
    if np.mean(np.abs(redrawn - best) > NEAR_S) > MAX_FAR_SHARE:
        raise RefusedError(f"no clear peak: the best lag depends on the part of the recording; {SHORT} of all joints")
    if abs(best) > LARGEST_LAG_S:
        raise RefusedError(
            f"the best lag is {best * 1e3:.0f} ms, beyond {LARGEST_LAG_S * 1e3:.0f} ms; check the stamps of both"
        )
    fine = best + np.arange(-NEAR_S, NEAR_S + FINE_S / 2, FINE_S)
    near = sums.of([features(lag)[used] for lag in fine.tolist()])
    correlations = near.correlations(ones)
    value = float(_peaks(fine, correlations)[0])
    edge = (1 - COVERAGE) / 2
    low, high = np.quantile(_peaks(fine, near.correlations(weights)), [edge, 1 - edge]).tolist()
    if high - low > MAX_WIDTH_S:
        raise RefusedError(f"uncertain, {low * 1e3:.0f} to {high * 1e3:.0f} ms; {SHORT}, and faster")
    return Lag(value, min(low, value - EXACT_S), max(high, value + EXACT_S), float(correlations.max()), count)


def _clear_peak(lags: Float64, correlations: Float64) -> float:
    """Return the lag of the largest of (L,) correlations; RefusedError: another peak is nearly as high."""
    best = int(np.argmax(correlations))
    inner = correlations[1:-1]
    peaks = 1 + np.flatnonzero((inner >= correlations[:-2]) & (inner >= correlations[2:]))
    for rival in peaks[np.abs(lags[peaks] - lags[best]) > NEAR_S].tolist():
        if correlations[rival] > MAX_RIVAL * correlations[best]:
            both = " and ".join(f"{1e3 * lags[index]:.0f}" for index in sorted((best, rival)))
            what = "periodic motion" if correlations[best] > NOT_NOISE else "no clear peak"
            raise RefusedError(f"{what}: lags of {both} ms fit equally; {SHORT} of all joints")
    return float(lags[best])


class _Moments(NamedTuple):
    """Sums within blocks, around their means, by lag."""

    xx: Float64  # (L, B, F, F)
    xy: Float64  # (L, B, F)
    yy: Float64  # (B,)

    def correlations(self, weights: Float64) -> Float64:
        """Return (L, R) multiple correlations of blocks with (B, R) weights; negative if the target falls with them."""
        lags, blocks, count = self.xy.shape
        xx = np.einsum("lbk,br->lrk", self.xx.reshape(lags, blocks, -1), weights, optimize=True)
        xx = xx.reshape(lags, -1, count, count)
        xy = np.einsum("lbi,br->lri", self.xy, weights, optimize=True)
        mean = np.trace(xx, axis1=2, axis2=3) / count
        xx += (RIDGE * mean + 1e-300)[..., None, None] * np.eye(count)
        explained = (np.linalg.solve(xx, xy[..., None])[..., 0] * xy).sum(-1)
        found = np.sqrt(np.maximum(explained, 0) / np.maximum(self.yy @ weights, 1e-300))
        signed: Float64 = found * np.sign(xy.sum(-1))
        return signed


class _BlockSums:
    """Sums products of features and a target (N, K) within blocks of rows that begin at `firsts`."""

    def __init__(self, firsts: NDArray[np.intp], target: Float64) -> None:
        self._firsts = firsts
        self._sizes = np.diff([*firsts.tolist(), len(target)])
        self._y = self._centred(target)

    def of(self, features: Iterable[Float64]) -> _Moments:
        """Return the sums for (N, K, F) features of each lag."""
        xx, xy = [], []
        for values in features:
            x = self._centred(values)
            xx.append(np.add.reduceat(np.einsum("nkf,nkg->nfg", x, x), self._firsts))
            xy.append(np.add.reduceat(np.einsum("nkf,nk->nf", x, self._y), self._firsts))
        return _Moments(np.stack(xx), np.stack(xy), np.add.reduceat((self._y**2).sum(axis=1), self._firsts))

    def _centred(self, values: Float64) -> Float64:
        shape = (-1, *[1] * (values.ndim - 1))
        means = np.add.reduceat(values, self._firsts) / self._sizes.reshape(shape)
        centred: Float64 = values - np.repeat(means, self._sizes, axis=0)
        return centred


def _peaks(lags: Float64, correlations: Float64) -> Float64:
    """Return the (R,) lags of the largest of (L, R) correlations, between the (L,) lags."""
    at = np.clip(np.argmax(correlations, axis=0), 1, len(lags) - 2)
    before, here, after = (correlations[at + step, np.arange(correlations.shape[1])] for step in (-1, 0, 1))
    bend = before - 2 * here + after
    shift = np.where(bend < 0, 0.5 * (before - after) / np.where(bend < 0, bend, -1), 0)
    peaks: Float64 = lags[at] + np.clip(shift, -1, 1) * (lags[1] - lags[0])
    return peaks


def drift_of(times: Times) -> tuple[float, float, float]:
    """Return by how many ppm the clock of the log is faster than that of the stamps, and the interval.

    Errors:
        RefusedError: the stamps do not determine it.
    """
    good = times.where(times.stamps_ns > 0)
    seconds = float(np.ptp(good.logs_ns)) / NS_PER_S if len(good.logs_ns) else 0.0
    if seconds < MIN_DRIFT_S:
        raise RefusedError(f"{seconds:.1f} s of stamps, {MIN_DRIFT_S:g} s are needed; record longer")
    start, first = int(good.logs_ns[0]), int(good.logs_ns[0] - good.stamps_ns[0])
    logs = (good.logs_ns - start).astype(np.float64)
    delays = (good.logs_ns - good.stamps_ns - first).astype(np.float64)
    windows = np.floor(logs / (logs.max() + 1) * DRIFT_WINDOWS).astype(np.int64)
    order = np.lexsort((delays, windows))
    fastest = order[np.diff(windows[order], prepend=-1) > 0]
    x, y = logs[fastest], delays[fastest]
    count = len(x)
    if count < MIN_DRIFT_WINDOWS:
        raise RefusedError(f"messages in {count} % of the time, {MIN_DRIFT_WINDOWS} % are needed; record longer")
    i, j = np.triu_indices(count, 1)
    slopes = np.sort((y[j] - y[i]) / (x[j] - x[i]))
    value = float(np.median(slopes))
    rest = y - value * x
    if float(np.median(np.abs(rest - np.median(rest)))) > LARGEST_SCATTER_NS:
        raise RefusedError("the stamps do not follow a clock of constant rate; use `stamp: device` or `stamp: receive`")
    if abs(value) > LARGEST_DRIFT:
        raise RefusedError(
            f"the stamps run at {1 - value:.3f} times the clock of the log, as in a simulation; record its /clock"
        )
    reach = Z * (count * (count - 1) * (2 * count + 5) / 18) ** 0.5  # of Kendall's statistic
    low, high = (int(np.clip((len(slopes) + sign * reach) / 2, 0, len(slopes) - 1)) for sign in (-1, 1))
    return value * 1e6, float(slopes[low]) * 1e6, float(slopes[high]) * 1e6


# Reading a recording.


class FrameReader:
    """What is taken from the frames of a camera: how much each differs from the one before it.

    Attributes:
        against: what cameras are measured against; empty: the joints.
    """

    against = ""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.change: list[float] = []
        self._last: NDArray[np.float32] | None = None

    def add(self, time_ns: int, time_s: float, pixels: NDArray[Any]) -> None:
        """Process the next frame, (H, W) uint8 or float32; one that is not newer is left out."""
        if self.times_s and time_s <= self.times_s[-1]:
            return
        small = _small(pixels)
        if self._last is not None and self._last.shape == small.shape:
            step = small - self._last
            self.change.append(float(np.abs(step - step.mean()).mean()))  # not a change of the exposure
        elif self._last is not None:
            self.change.append(0.0)
        self.times_s.append(time_s)
        self._last = small

    def measure(self, positions: Signal | None) -> Lag:
        """Return the latency; RefusedError: it is not determined."""
        if positions is None:
            raise RefusedError(NO_JOINTS)
        return camera_lag(np.array(self.times_s), np.array(self.change), positions)


def _small(pixels: NDArray[Any]) -> NDArray[np.float32]:
    """Return the means of (H, W) pixels over equal cells: ROWS x COLUMNS of them or more, if the image is so large."""
    rows, columns = (max(1, size // least) for size, least in zip(pixels.shape, (ROWS, COLUMNS), strict=True))
    height, width = pixels.shape[0] // rows, pixels.shape[1] // columns
    cells = pixels[: height * rows, : width * columns].reshape(height, rows, width, columns)
    small: NDArray[np.float32] = np.nan_to_num(cells.mean(axis=(1, 3), dtype=np.float32), posinf=0.0, neginf=0.0)
    return small


def one_channel(image: ImagePayload) -> NDArray[Any]:
    """Return (H, W) pixels of an image: green, grey or depth, uint8 or float32."""
    from robocache_ros.ops.image.convert import decode_pixels  # imports torch
    from robocache_ros.ops.image.formats import image_format

    raw = decode_compressed(image)
    pixels = decode_pixels(raw.data, image_format(raw.encoding), raw.layout)
    return pixels[..., 1 if pixels.shape[2] > 1 else 0]


@dataclass
class _Samples:
    """The samples of a vector stream, in the order of their arrival."""

    stream: StreamSpec
    times_s: list[float] = field(default_factory=list)
    values: list[NDArray[np.float32]] = field(default_factory=list)

    def signal(self, latency_ms: float = 0.0) -> Signal:
        if not self.times_s:
            return Signal(np.empty(0), np.empty((0, self.stream.dim)))
        times, first = np.unique(np.array(self.times_s), return_index=True)
        values = np.array(self.values, np.float64)[first]
        if turn := {"angle": 2 * np.pi, "angle_deg": 360.0}.get(self.stream.method):
            values = np.unwrap(values, axis=0, period=turn)
        return Signal(times - latency_ms / 1e3, values)


def calibrate(bag: Bag, spec: FusionSpec, joints: str = "", reader: type[FrameReader] = FrameReader) -> Calibration:
    """Measure the latencies of the cameras and actions of a spec, and the drift of the clocks of its topics.

    `latency_ms` of cameras and actions in the spec has no effect on the result; that of the joints has.

    Args:
        bag: an open recording.
        spec: its streams; topics that are not recorded are left out.
        joints: name of the stream of positions; else the joint states with the most joints.
        reader: what takes the frames of a camera; that of `qr_clock` reads codes, and needs no joints.

    Errors:
        RoboCacheError: `joints` is not a stream of numbers in the recording, or the recording cannot be read.
    """
    streams = [s for s in spec.streams if s.topic in bag.topics and bag.topics[s.topic].count and not s.is_transform]
    reference = None if reader.against else _reference(spec, streams, joints)
    cameras = {s.name: reader() for s in streams if s.kind == "image"}
    actions = [] if reader.against else [s for s in streams if _is_action(s) and s is not reference]
    chosen = [s for s in streams if s.name in cameras or s is reference or s in actions]
    vectors = {s.name: _Samples(s) for s in chosen if s.kind == "vector"}
    times, notes = _read(bag, chosen, cameras, vectors)
    positions = vectors[reference.name].signal(reference.latency_ms) if reference else None
    against = reader.against or (reference.name if reference else "-")
    found = [
        _measured("latency", s, against, partial(cameras[s.name].measure, positions))
        for s in streams
        if s.name in cameras
    ]
    for stream in actions:
        follow = partial(_follow, vectors[stream.name], positions, reference)
        found.append(_measured("action_latency", stream, against, follow))
    return Calibration(spec, (*found, *_drifts(times)), notes)


def _is_action(stream: StreamSpec) -> bool:
    return stream.role == "action" and stream.kind == "vector" and not stream.is_rotation


def _reference(spec: FusionSpec, streams: Iterable[StreamSpec], name: str) -> StreamSpec | None:
    """Return the stream of positions that others are measured against; None if there is none."""
    if name:
        stream = spec.stream(name)
        if stream not in streams or stream.kind != "vector" or stream.is_rotation:
            raise RoboCacheError(f"--joints: {printable(name, 60)} has no recorded positions; name another stream")
        return stream
    positions = [
        s
        for s in streams
        if s.kind == "vector" and s.role == "observation" and s.paths[0].rpartition(".")[2] in ("position", "positions")
    ]
    return max(positions, key=lambda s: (s.type == JOINT_TYPE, s.dim, s.rate_hz), default=None)


def _follow(commands: _Samples, positions: Signal | None, state: StreamSpec | None) -> Lag:
    if positions is None or state is None:
        raise RefusedError(NO_JOINTS)
    stream = commands.stream
    if stream.names and set(stream.names) <= set(state.names):
        order = [state.names.index(name) for name in stream.names]
        positions = positions._replace(values=positions.values[:, order])
    rates = stream.unit.endswith("/s") or any("velocit" in path for path in stream.paths)
    return action_lag(commands.signal(), positions, rates=rates)


def _measured(quantity: str, stream: StreamSpec, against: str, measure: Callable[[], Lag]) -> Measurement:
    current = stream.latency_ms if quantity == "latency" else None
    try:
        lag = measure()
    except RefusedError as error:
        return Measurement(quantity, stream.name, against, "ms", current=current, refused=str(error))
    value, low, high = (1e3 * seconds for seconds in lag[:3])
    return Measurement(quantity, stream.name, against, "ms", value, low, high, lag.correlation, lag.samples, current)


def _read(
    bag: Bag, streams: Iterable[StreamSpec], cameras: Mapping[str, Any], vectors: Mapping[str, _Samples]
) -> tuple[dict[str, Times], tuple[str, ...]]:
    """Read the messages of streams; return the stamps of their topics, and notes."""
    from robocache_ros.engine.samples import StreamSamples  # imports torch

    by_topic: dict[str, list[tuple[StreamSpec, Any, StreamSamples]]] = {}
    for stream in streams:
        use = (stream, make_decoder(stream, bag.definitions), StreamSamples(stream, 1, unbounded=False))
        by_topic.setdefault(stream.topic, []).append(use)
    timeline = read_timeline(bag, {s.topic for s in streams if s.stamp == "device"})
    span = max(timeline.spans(bag.start_ns, bag.stop_ns), key=lambda each: each.stop_ns - each.start_ns)
    stop_ns = min(span.stop_ns, span.start_ns + round(MAX_S * NS_PER_S))
    recorder = Recorder([bag.topics[name] for name in by_topic], bag.definitions)
    unusable: dict[str, int] = {}
    for message in recorder.watch(bag.messages(by_topic, span.start_ns, stop_ns, views=True)):
        arrival_ns = timeline.at(message.log_ns)
        for stream, decoder, samples in by_topic[message.topic]:
            try:
                stamp_ns, value = decoder.decode_cdr(message.data)[:2]
                time_ns = samples.time_ns(stamp_ns, arrival_ns, value)
                if time_ns is None or abs(time_ns - arrival_ns) > stream.max_skew_ns:
                    raise DecodeError("skewed", "stamp")
                time_s = (time_ns - span.first_ns) / NS_PER_S
                if stream.name in cameras:
                    cameras[stream.name].add(time_ns, time_s, one_channel(value))
                else:
                    vectors[stream.name].times_s.append(time_s)
                    vectors[stream.name].values.append(value)
            except DecodeError:
                unusable[stream.name] = unusable.get(stream.name, 0) + 1
    notes = [*bag.notes, *filter(None, [_cut_note(bag, timeline, span.start_ns, stop_ns)])]
    notes += [f"{name}: {count:,} messages without a usable value or stamp" for name, count in unusable.items()]
    return recorder.times(), tuple(notes)


def _cut_note(bag: Bag, timeline: Timeline, start_ns: int, stop_ns: int) -> str:
    if (start_ns, stop_ns) == (bag.start_ns, bag.stop_ns):
        return ""
    why = "the longest part between jumps of the time" if len(timeline.segments) > 1 else "the start"
    return f"{(stop_ns - start_ns) / NS_PER_S:.0f} of {(bag.stop_ns - bag.start_ns) / NS_PER_S:.0f} s are used: {why}"


def _drifts(times: Mapping[str, Times]) -> Iterable[Measurement]:
    """Yield the drift of each topic whose stamps are of another clock, or whose clock moves noticeably."""
    for topic, one in times.items():
        clock = clock_of(one.logs_ns, one.stamps_ns)
        if not clock.is_usable:
            continue
        made = Measurement("drift", topic, "log time", "ppm", samples=len(one.logs_ns))
        try:
            value, low, high = drift_of(one)
        except RefusedError as error:
            if clock.kind == "device":
                yield replace(made, refused=str(error))
            continue
        moved_ns = min(abs(low), abs(high)) * float(np.ptp(one.logs_ns)) / 1e6 if low * high > 0 else 0.0
        if clock.kind == "device" or moved_ns > NOTICED_NS:
            yield replace(made, value=value, low=low, high=high)
