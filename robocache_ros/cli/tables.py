"""Tables, notes and progress bars of the command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import track
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from robocache_ros.cli.program import LINE_CHARACTERS
from robocache_ros.errors import number_of, printable
from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.dataset import DatasetOptions
from robocache_ros.spec.keys import keys_of
from robocache_ros.spec.layout import Layout
from robocache_ros.storage.paths import AnyPath

if TYPE_CHECKING:
    from robocache_ros.bags.describe import BagInfo, FrameInfo
    from robocache_ros.exporter.datasets import ExportResult


class SafeConsole(Console):
    """A console whose text has no control characters: names of files and keys of buckets are text from outside."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render to segments, which are what is written; those that move the cursor are the console's own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=_escaped(segment.text))


def _escaped(text: str) -> str:
    if text.isprintable() or text == "\n":
        return text
    return "\n".join(printable(line, max(8, 10 * len(line))) for line in text.split("\n"))  # none is cut


console = SafeConsole()
errors = SafeConsole(stderr=True)

PATH = 4096  # characters of a path that is not cut
Item = TypeVar("Item")

_WIDEST = 1000
_NO_DELAY = {"none": "no header", "unset": "no stamps", "constant": "one stamp"}


def show(table: Table) -> None:
    """Print a table at the width of its text, on a terminal and to a pipe, so that no word is cut."""
    needed = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
    SafeConsole(width=max(needed, console.width)).print(table, crop=False)


def say(text: str) -> None:
    """Print a line unchanged."""
    console.print(escape(text), soft_wrap=True, highlight=False)


def argument(path: AnyPath | str) -> str:
    """Return a path as an argument of a command that is printed, for a shell."""
    return shlex.quote(printable(path, PATH))


def show_notes(notes: Iterable[str]) -> None:
    """Print one line per note."""
    for note in notes:
        console.print(f"[yellow]note[/] {escape(printable(note, 400))}", soft_wrap=True, highlight=False)


def complain(text: str) -> None:
    """Print an error line to stderr."""
    errors.print(escape(f"robocache: {printable(text, LINE_CHARACTERS)}"), soft_wrap=True, highlight=False)


def counted(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items, with a progress bar on a terminal."""
    yield from track(items, what, console=errors, transient=True, disable=not errors.is_terminal or len(items) < 2)


def overview_table(recordings: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of several recordings, one row each."""
    table = plain_table(number_of(len(recordings), "recording"), ("recording",), ("s", "MB", "topics", "messages"))
    for recording in recordings:
        name = escape(printable(recording["path"], 120))
        if "error" in recording:
            table.add_row(name, *"----")
            continue
        topics = recording["topics"]
        size, messages = recording["size_bytes"] / 1e6, sum(topic["messages"] for topic in topics)
        table.add_row(name, f"{recording['duration_s']:.1f}", f"{size:.1f}", str(len(topics)), str(messages))
    return table


def bag_table(info: BagInfo) -> Table:
    """Return the table of a recording, one row per topic. Delays are the median and the maximum."""
    table = plain_table(
        f"{printable(info.path.absolute().name, 80)} · {info.duration_s:.1f} s · {info.size / 1e6:.1f} MB",
        ("topic",),
        ("messages", "Hz", "lost", "gap ms", "delay ms: median / max"),
    )
    for name, topic in info.topics.items():
        stats = topic.stats
        what = f"{printable(stats.type.replace('/msg/', '/'), 120)}\n{printable(topic.content, 160)}".strip()
        table.add_row(
            f"[bold]{escape(printable(name, 120))}[/]\n[dim]{escape(what)}[/]",
            str(stats.count),
            f"{stats.rate_hz:.1f}" if stats.rate_hz else "-",
            "?" if info.is_sampled else str(stats.missing) if stats.missing else "-",
            "?" if info.is_sampled else f"{stats.longest_gap_ms:.0f}" if stats.gaps else "-",
            f"{stats.delay_ms(0.5):.1f} / {stats.delay_ms(1):.1f}"
            if stats.stamped
            else _NO_DELAY[stats.clock.kind]
            if stats.count
            else "-",
        )
    return table


def frame_table(frames: Mapping[str, FrameInfo]) -> Table:
    """Return the table of the frame tree, one row per frame below its parent."""
    from robocache_ros.bags.describe import tree_of

    table = plain_table("frames, each below its parent", ("frame",), ("Hz",))
    table.add_column("transform", no_wrap=True)
    for depth, name in tree_of(frames):
        info = frames.get(name)
        rate = f"{info.rate_hz:.1f}" if info and info.rate_hz else "-"
        table.add_row(escape("  " * depth + printable(name, 80)), rate, _frame_note(info) if info else "-")
    return table


def _frame_note(frame: FrameInfo) -> str:
    if frame.is_static:
        return "static"
    changes = f", {frame.parents - 1} changes of its parent" if frame.parents > 1 else ""
    return f"{'moves' if frame.moves else 'does not move'}{changes}"


def spec_table(spec: FusionSpec) -> Table:
    """Return the table of a resolved spec, one row per stream, with its columns in the fused tensor."""
    layout = Layout(spec)
    ages = f", and the ages of {layout.ages} samples" if layout.ages else ""
    table = plain_table(
        f"{spec.rate_hz} Hz, published {spec.delay_ms:g} ms after the tick ({spec.emit}), horizon {spec.horizon}\n"
        f"{layout.row_width} columns: {layout.width} values, then valid and age of {len(spec.streams)} streams{ages}",
        ("columns", "stream", "values", "at a tick"),
    )
    for stream in spec.streams:
        slot = layout.slots.get(stream.name)
        what = f"{stream.frames[1]} in {stream.frames[0]}" if stream.frames else ", ".join(stream.paths)
        source = f"{stream.topic} {printable(what, 120)}\n{stream.type.replace('/msg/', '/')}"
        rate = f"\n{stream.rate_hz:g} Hz" if stream.rate_hz else ""
        latency = f" - {stream.latency_ms:g} ms" if stream.latency_ms else ""
        table.add_row(
            f"{slot.start} to {slot.stop - 1}" if slot else "a tensor",
            f"[bold]{stream.name}[/]{' (action)' if stream.role == 'action' else ''}\n[dim]{escape(source)}[/]",
            escape(_values(stream)) + f"[dim]{rate}[/]",
            f"{stream.align}\n[dim]{_limits(stream)}\n{stream.stamp} stamp{latency}[/]",
        )
    return table


def _values(stream: StreamSpec) -> str:
    if stream.image:
        size = "x".join(map(str, stream.image.size)) if stream.image.size else "original size"
        return f"3 x {size}" + ("\nnormalised" if stream.image.normalize else "")
    if stream.voxels:
        return f"{'x'.join(map(str, stream.voxels.shape))}\n{stream.voxels.reduce}, {stream.voxels.size_m[0]:g} m"
    unit = f" in {stream.unit}" if stream.unit else ""
    if stream.names:
        return f"{stream.width} joints{unit}"
    if stream.rows:
        return f"{stream.rows} x {stream.dim} values{unit}"
    labels = " ".join(stream.components)
    number = f"{stream.width} value" + "s" * (stream.width > 1)
    return (labels if stream.width <= 4 and not labels.startswith("0") else number) + unit


def _limits(stream: StreamSpec) -> str:
    if stream.samples:
        return f"{stream.reduce or 'newest'} of up to {stream.samples} samples"
    age = f"{'ahead' if stream.align == 'next' else 'age'} {stream.max_age_ms:g} ms"
    return f"gap {stream.max_gap_ms:g}, {age}" if stream.computes else age


def export_table(result: ExportResult) -> Table:
    """Return the table of an export, one row per stream: shares of aligned, held and invalid ticks, and messages."""
    episodes = sum(len(recording.episodes) for recording in result.recordings)
    table = plain_table(
        f"{number_of(result.frames, 'tick')} in {number_of(episodes, 'episode')}",
        ("stream",),
        ("aligned", "held", "invalid", "messages", "late", "dropped", "duplicate"),
    )
    for row, stream in enumerate(result.recordings[0].spec.streams):
        kept = [r.valid[r.kept, row] for r in result.recordings]
        total = sum(len(k) for k in kept)
        shares = [sum(int((k == state).sum()) for k in kept) / max(total, 1) for state in (1, 2, 0)]
        counts = [r.counters[stream.name] for r in result.recordings]
        table.add_row(
            stream.name,
            *(percent(s) for s in shares),
            *(str(sum(c[key] for c in counts)) for key in ("received", "late", "dropped", "duplicate")),
        )
    return table


def percent(share: float) -> str:
    """Format a share; `-` for none."""
    return "-" if not share else f"{100 * share:.1f} %"


def plain_table(title: str, left: Iterable[str] = (), right: Iterable[str] = ()) -> Table:
    """Return a table without rules around its cells, with columns of text, and after them of numbers."""
    heading = Text(title, style="table.title", no_wrap=True, overflow="ignore")
    table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def changed_options(options: DatasetOptions) -> str:
    """Return the options of a dataset that are not the defaults, in one line."""
    changed = {
        name: getattr(options, name)
        for name, field in keys_of(DatasetOptions).items()
        if name == "formats" or getattr(options, name) != field.default
    }
    return "; ".join(
        f"{name} {', '.join(value) if isinstance(value, tuple) else printable(value, 60)}"
        for name, value in changed.items()
    )
