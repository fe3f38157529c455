"""The demo figure: received messages, and the tensors computed from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.bags.reader import Bag
from robocache_ros.decode import DecodeError, make_decoder
from robocache_ros.engine.frames import Frames
from robocache_ros.extras import need
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.layout import Layout
from robocache_ros.units import NS_PER_S

WINDOW_S = 0.5
INK, FAINT, ALIGNED, HELD = "#1f2430", "#b8bec9", "#0b7a75", "#e07a1f"
PICTURES = 6


def draw(path: Path, bag: Bag, spec: FusionSpec, frames: Frames) -> None:
    """Draw a PNG of the half second around the widest gap of a joint stream, with its frames and voxels."""
    matplotlib = need("matplotlib", "export")
    matplotlib.use("Agg")
    plt = need("matplotlib.pyplot", "export")
    shown = next((s for s in spec.vectors if s.align == "linear"), spec.vectors[0])
    start_ns, stop_ns = _window(frames, spec, shown)
    samples = {s.name: _samples(bag, s, start_ns, stop_ns) for s in spec.streams}
    during = np.flatnonzero((frames.ticks_ns >= start_ns) & (frames.ticks_ns < stop_ns))
    style = {"font.size": 10, "axes.edgecolor": FAINT, "axes.spines.top": False, "axes.spines.right": False,
             "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}  # fmt: skip
    with plt.rc_context(style):
        figure = plt.figure(figsize=(12, 7.6), dpi=110, layout="constrained")
        grid = figure.add_gridspec(3, 1, height_ratios=[1.35, 1.5, 1.1])
        _raster(figure.add_subplot(grid[0]), spec, samples, frames.ticks_ns[during], start_ns)
        _curve(figure.add_subplot(grid[1]), spec, shown, samples[shown.name], frames, during, start_ns)
        _strip(figure, grid[2], spec, frames, during, start_ns)
        figure.savefig(path)
        plt.close(figure)


def _window(frames: Frames, spec: FusionSpec, shown: StreamSpec) -> tuple[int, int]:
    """Return half a second around the first tick past the start that is not aligned, or around the middle."""
    column = [s.name for s in spec.streams].index(shown.name)
    broken = np.flatnonzero(frames.valid[:, column] != 1)
    broken = broken[(broken > 25) & (broken < len(frames) - 25)]
    middle = int(frames.ticks_ns[broken[0] if len(broken) else len(frames) // 2])
    start_ns = middle - round(WINDOW_S * 0.35 * NS_PER_S)
    return start_ns, start_ns + round(WINDOW_S * NS_PER_S)


def _samples(bag: Bag, stream: StreamSpec, start_ns: int, stop_ns: int) -> list[tuple[int, Any]]:
    """Return (stamp, value) of the recorded samples with stamps within the window."""
    decoder = make_decoder(stream, bag.definitions)
    found = []
    for message in bag.messages([stream.topic], start_ns, stop_ns + NS_PER_S):
        try:
            sample = decoder.decode_cdr(message.data)
        except DecodeError:
            continue
        stamp_ns = message.log_ns if stream.stamp == "receive" or sample.stamp_ns is None else sample.stamp_ns
        if start_ns <= stamp_ns < stop_ns:
            found.append((stamp_ns, sample.value))
    return found


def _ms(times_ns: Any, start_ns: int) -> NDArray[np.float64]:
    return (np.asarray(times_ns, np.int64) - start_ns) / 1e6


def _raster(axes: Any, spec: FusionSpec, samples: dict[str, Any], ticks_ns: Any, start_ns: int) -> None:
    names = list(samples)
    for row, name in enumerate(names):
        axes.plot(
            _ms([s for s, _ in samples[name]], start_ns), [row] * len(samples[name]), "|", color=INK, ms=9, mew=0.9
        )
    for tick in _ms(ticks_ns, start_ns):
        axes.axvline(tick, color=ALIGNED, lw=0.7, alpha=0.45)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, WINDOW_S * 1e3)
    axes.tick_params(labelbottom=False, length=0)
    axes.set_title(f"messages of the topics (|), and the {spec.rate_hz} Hz ticks", loc="left", weight="bold")


def _curve(
    axes: Any, spec: FusionSpec, shown: StreamSpec, samples: Any, frames: Frames, during: Any, start_ns: int
) -> None:
    column = Layout(spec).slots[shown.name].start
    place = [s.name for s in spec.streams].index(shown.name)
    if samples:
        axes.plot(
            _ms([s for s, _ in samples], start_ns), [v[0] for _, v in samples], ".", color=FAINT, ms=4, label="samples"
        )
    values, valid = frames.fused[during, column].numpy(), frames.valid[during, place]
    times = _ms(frames.ticks_ns[during], start_ns)
    for state, color, label in ((1, ALIGNED, "aligned"), (2, HELD, "held past the next sample")):
        axes.plot(times[valid == state], values[valid == state], "o", color=color, ms=6, label=label)
    for tick in times[valid == 0]:
        axes.axvspan(tick - 10, tick + 10, color=HELD, alpha=0.12, lw=0)
    axes.plot([], [], "s", color=HELD, alpha=0.2, ms=9, label="invalid: zero, marked by the mask")
    axes.set_xlim(0, WINDOW_S * 1e3)
    axes.set_xlabel("ms")
    axes.set_ylabel(f"{shown.name}.{shown.components[0]}" + (f" [{shown.unit}]" if shown.unit else ""))
    axes.legend(loc="best", frameon=False, ncols=4)
    axes.set_title("what the node publishes", loc="left", weight="bold")


def _strip(figure: Any, place: Any, spec: FusionSpec, frames: Frames, during: Any, start_ns: int) -> None:
    images = [s.name for s in spec.media if s.kind == "image" and frames.media.get(s.name) is not None]
    clouds = [s.name for s in spec.media if s.kind == "cloud" and frames.media.get(s.name) is not None]
    if not images and not clouds:
        return
    shown = during[np.linspace(0, len(during) - 1, PICTURES).astype(int)]
    cells = place.subgridspec(1, PICTURES + bool(clouds), wspace=0.03)
    for cell, tick in enumerate(shown if images else ()):
        axes = figure.add_subplot(cells[cell])
        image = frames.media[images[0]][tick].numpy()
        axes.imshow(image.transpose(1, 2, 0) if image.shape[0] == 3 else image[0], cmap="gray")
        axes.set_title(f"{_ms([frames.ticks_ns[tick]], start_ns)[0]:.0f} ms", fontsize=9)
        axes.set_axis_off()
    if clouds:
        axes = figure.add_subplot(cells[PICTURES])
        grid = frames.media[clouds[0]][shown[0]].float()
        axes.imshow(grid.reshape(-1, *grid.shape[-3:]).sum(dim=(0, 3)).T.numpy(), cmap="viridis")
        axes.set_title(f"{clouds[0]}, along z", fontsize=9)
        axes.set_axis_off()
