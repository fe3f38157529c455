"""The options of a dataset, declared once: for the command line, the `dataset` section of a spec, and Python."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec.keys import (
    Flag,
    KeyType,
    boolean,
    check,
    choice,
    integer,
    key,
    keys_of,
    many,
    message_folder,
    number,
    pattern,
    refusal,
    refuse,
    show_value,
    topic_name,
)

INPUT, OUTPUT, EPISODES = "Input", "Output", "Episodes"
ACTIONS, IMAGES, MACHINES = "Actions", "Images, depth, video and clouds", "Machines"

CODECS = ("av1", "h264")
COPY = "copy"  # the packets of a video topic
MAX_CRF = {"av1": 63, "h264": 51}
MAX_GOP = 1000
PRESETS = {
    "av1": tuple(str(number) for number in range(14)),
    "h264": (
        *("ultrafast", "superfast", "veryfast", "faster", "fast", "medium"),
        *("slow", "slower", "veryslow", "placebo"),
    ),
}
MAX_OFFSET = 1000  # ticks
MAX_POINTS = 1 << 20  # of a cloud
MAX_LINE_CHARACTERS = 1000  # of a task or a name
_MAX_S = 1e9
_NEAR = 0.05  # largest distance of an offset in ms from a whole number of ticks, in ticks
_NOT_TEXT = ("Cc", "Cs", "Zl", "Zp")  # control characters, surrogates, line and paragraph separators


def check_line(name: str, text: str) -> None:
    """Refuse a task or a name that is longer than MAX_LINE_CHARACTERS, or is not one line of text."""
    if problem := _not_a_line(text):
        raise refusal(name, problem)


def _not_a_line(text: str) -> str:
    if len(text) > MAX_LINE_CHARACTERS:
        return f"{len(text):,} characters; use {MAX_LINE_CHARACTERS:,} at most"
    if any(unicodedata.category(character) in _NOT_TEXT for character in text):
        return f"{printable(text, 60)!r} is not a line of text; remove its control characters"
    return ""


def line(advice: str = "") -> KeyType:
    """A line of text in any language; with `advice` it is not empty."""

    def parse(raw: Any) -> str:
        if not isinstance(raw, str):
            raise refuse(f"{show_value(raw)} is not text; put it in quotes")
        if advice and not raw.strip():
            raise refuse(f"is empty; {advice}")
        if problem := _not_a_line(raw):
            raise refuse(problem)
        return raw

    return KeyType("text", parse, {"type": "string", "minLength": int(bool(advice)), "maxLength": MAX_LINE_CHARACTERS})


def _offset(raw: Any) -> str:
    text = str(raw).strip()
    found = re.fullmatch(r"(-?)([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms)?", text)
    if isinstance(raw, bool) or not found or (not found[3] and "." in found[2]):
        raise refuse(f"{printable(text, 40)!r} is not an offset; write 2 (ticks) or 40ms")
    if found[1]:
        raise refuse(f"{text} is before the row; set latency_ms of the action's stream instead")
    return text


_offset_type = KeyType(
    "ticks, or a time such as 40ms",
    _offset,
    {
        "anyOf": [
            {"type": "integer", "minimum": 0},
            {"type": "string", "pattern": r"^[0-9]{1,9}((\.[0-9]{1,9})?\s*ms)?$"},
        ]
    },
)
_preset = choice(*PRESETS["av1"], *PRESETS["h264"])
_preset_type = KeyType(
    "0 … 13 (av1), or ultrafast … placebo (h264)",
    lambda raw: _preset.read(str(raw) if isinstance(raw, int) and not isinstance(raw, bool) else raw),
    {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 13}, _preset.schema]},
)
_format = pattern("a name such as lerobot", "^[A-Za-z][A-Za-z0-9_.-]*$")
_stream = pattern("the name of a stream", "^[a-z][a-z0-9_]*$")


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """What an export makes of recordings."""

    rate_hz: int | None = key(
        integer(1, 1000), "ticks per second instead of the rate of the spec", default=None, unit="Hz", in_files=False
    )
    episode_topic: str = key(
        topic_name,
        "topic whose messages begin and end episodes: a bool is true inside of an episode, a new integer or text "
        "begins one, another message ends one and begins the next",
        default="",
        flag=Flag(EPISODES, "Topic whose messages begin and end episodes.", metavar="TOPIC"),
    )
    episode_file: bool = key(
        boolean,
        "use the episodes.yaml or episodes.csv of a recording, unless there is an episode topic",
        default=True,
        flag=Flag(EPISODES, "Use episodes.yaml or .csv of a recording."),
    )
    split_s: float = key(
        number(0, _MAX_S),
        "episodes that are longer are divided; 0: they are not",
        default=0.0,
        unit="s",
        flag=Flag(EPISODES, "Divide episodes that are longer; 0: do not.", ("--split",), "S"),
    )
    trim_idle_s: float = key(
        number(0, _MAX_S),
        "leave out ticks at which nothing moves for this long; 0: keep them",
        default=0.0,
        unit="s",
        flag=Flag(EPISODES, "Leave out ticks without motion for this long.", ("--trim-idle",), "S"),
    )
    corrections: bool = key(
        boolean,
        "only the ticks at which the stream with role intervention is not 0: an episode for each takeover",
        default=False,
        flag=Flag(EPISODES, "Only what an operator commanded: an episode for each takeover."),
    )
    task_topic: str = key(
        topic_name,
        "topic of std_msgs/String with the task of each episode",
        default="",
        flag=Flag(EPISODES, "Topic of std_msgs/String with the task of each episode.", metavar="TOPIC"),
    )
    action: str = key(
        choice("absolute", "delta", "next-observation", "next-delta"),
        "absolute: the commands; delta: their change from an observation; next-observation, next-delta: for recordings "
        "without commands, later observations or their change",
        default="absolute",
        flag=Flag(ACTIONS, "absolute, delta, next-observation or next-delta", metavar="KIND"),
    )
    action_from: Sequence[str] = key(
        many(_stream),
        "delta: the observation to subtract; next-observation: the observations that become the action, else all",
        default=(),
        flag=Flag(ACTIONS, "Observation to subtract, or to use; may be repeated.", metavar="STREAM"),
    )
    action_offset: int | str = key(
        _offset_type,
        "how much later than its row an action is: 0, or 1 tick for next-observation and next-delta",
        default="",
        flag=Flag(ACTIONS, "How much later an action is: ticks, or a time (40ms).", metavar="TICKS"),
    )
    formats: Sequence[str] = key(
        many(_format, unique=True),
        "dataset formats, see docs/reference/formats.md",
        default=("lerobot",),
        flag=Flag(OUTPUT, "One of the formats above; repeatable.", ("--format", "-f"), "NAME"),
    )
    visibility: str = key(
        choice("ideal", "deployed"),
        "ideal: ticks use every sample; deployed: only samples that had arrived on the robot",
        default="ideal",
        flag=Flag(INPUT, "deployed: without samples that arrive too late."),
    )
    compare_visibility: bool = key(
        boolean,
        "show the other visibility beside it in the report; fuses each recording twice",
        default=False,
        flag=Flag(OUTPUT, "Show ideal and deployed side by side in the report."),
    )
    media: str = key(
        choice("video", "image", "none"),
        "store camera images as video (lossy) where the format can, as PNG (lossless), or not at all",
        default="video",
        flag=Flag(IMAGES, "Video (lossy), PNG (lossless), or no images."),
    )
    codec: str = key(
        choice("auto", *CODECS, COPY),
        "codec of videos. auto: what readers of the format expect; copy: video topics are not encoded again",
        default="auto",
        flag=Flag(IMAGES, "copy: video topics are not encoded again."),
    )
    crf: int | None = key(
        integer(0, MAX_CRF["av1"]),
        "quality of videos: lower is better and larger; 0 … 63 of av1, 0 … 51 of h264",
        default=None,
        flag=Flag(IMAGES, "Quality of video; lower is better.", metavar="N", shown="av1: 30, h264: 23"),
    )
    preset: str | None = key(
        _preset_type,
        "speed of the encoder; slower ones write less",
        default=None,
        flag=Flag(IMAGES, "Speed of the encoder.", metavar="NAME", shown="av1: 12, h264: veryfast"),
    )
    gop: int | None = key(
        integer(1, MAX_GOP),
        "frames from one key frame to the next: as many are decoded to read one",
        default=None,
        flag=Flag(IMAGES, "Frames from one key frame to the next.", metavar="N", shown="2"),
    )
    jpeg: str = key(
        choice("cpu", "gpu"),
        "decoder of jpeg images; gpu is nvJPEG, whose pixels differ by a few counts, and needs a GPU",
        default="cpu",
        flag=Flag(IMAGES, "gpu: nvJPEG, whose pixels differ a little."),
    )
    depth: str = key(
        choice("arrays", "video"),
        "store depth images as lossless arrays, or in the format lerobot as 12-bit video",
        default="arrays",
        flag=Flag(IMAGES, "Arrays, or 12-bit video (lerobot)."),
    )
    voxels: str = key(
        choice("dense", "sparse"),
        "in the format lerobot, store whole voxel grids, or the voxels that are not empty",
        default="dense",
        flag=Flag(IMAGES, "Whole grids, or voxels that are not empty (lerobot)."),
    )
    points: int = key(
        integer(0, MAX_POINTS),
        "voxels with the features x, y, z become clouds of this number of points; 0: they stay grids",
        default=0,
        flag=Flag(IMAGES, "Voxels with x, y, z become clouds of N points; 0: grids.", metavar="N"),
    )
    task: str = key(
        line("say in words what the robot does"),
        "what the robot does, in words, on which policies are conditioned",
        default="robot task",
        flag=Flag(EPISODES, "What the robot does, in words.", metavar="TEXT"),
    )
    robot_type: str = key(
        line(), "name of the robot in the dataset", default="unknown", flag=Flag(OUTPUT, metavar="NAME")
    )
    on_invalid: str = key(
        choice("spec", "split", "hold", "mask", "drop", "fail"),
        "ticks without a value, of every stream: leave them out and split, hold the last value, store zeros and mask "
        "them, drop the episode, or fail; spec: as the spec has it for each stream",
        default="spec",
        flag=Flag(EPISODES, "Ticks without a value: split, hold, mask, drop or fail.", metavar="HOW"),
    )
    trim: bool = key(
        boolean,
        "if invalid ticks are masked, leave out those at both ends",
        default=True,
        flag=Flag(EPISODES, "With mask: trim invalid ticks at both ends."),
    )
    min_frames: int = key(
        integer(1, 10**9),
        "shorter episodes are left out",
        default=2,
        flag=Flag(EPISODES, "Leave out shorter episodes.", metavar="N"),
    )
    min_valid: float = key(
        number(0, 1),
        "smallest share of ticks in episodes, from the first episode on; below it the recording is refused",
        default=0.25,
        flag=Flag(EPISODES, "Refuse a recording that keeps a smaller share of ticks.", metavar="SHARE"),
    )
    msg_path: Sequence[str] = key(
        many(message_folder),
        "folders with ROS packages, <package>/msg/<Type>.msg, for types that a recording does not define",
        default=(),
        flag=Flag(INPUT, "Folder of ROS packages with message definitions; repeatable.", metavar="DIR"),
        in_files=False,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.codec in PRESETS:
            if self.preset is not None and self.preset not in PRESETS[self.codec]:
                names = ", ".join(PRESETS[self.codec])
                raise refusal("preset", f"{self.preset!r} is not one of {self.codec}; use one of {names}")
            if self.crf is not None and self.crf > MAX_CRF[self.codec]:
                raise refusal("crf", f"{self.crf} is not in 0..{MAX_CRF[self.codec]}, the range of {self.codec}")
        if self.depth == "video" and "lerobot" not in self.formats:
            raise refusal("depth", "only the format lerobot has depth video; add it, or use depth arrays")
        if self.depth == "video" and self.media == "none":
            raise refusal(
                "depth", "media none exports no images, depth included; use media video or image, or leave depth out"
            )

    @property
    def is_next(self) -> bool:
        """Whether actions are made of observations."""
        return self.action.startswith("next-")

    def offset_ticks(self, rate_hz: int) -> int:
        """Return how many ticks after a row its action is, at a rate.

        Errors:
            RoboCacheError: the offset is not a whole number of ticks, or out of range.
        """
        text = str(self.action_offset) or str(int(self.is_next))
        number_ = float(text.removesuffix("ms"))
        ticks = number_ * rate_hz / 1000 if text.endswith("ms") else number_
        if abs(ticks - round(ticks)) > _NEAR:
            period = f"{1000 / rate_hz:.4g} ms"
            raise RoboCacheError(f"action_offset: {number_:g} ms is {ticks:.2f} ticks of {period}; use whole ticks")
        least = int(self.is_next)
        if not least <= round(ticks) <= MAX_OFFSET:
            raise RoboCacheError(f"action_offset: {round(ticks)} ticks are not possible; use {least} to {MAX_OFFSET}")
        return round(ticks)


SUGGESTED = ("formats", "task", "robot_type", "media", "on_invalid", "action")


def commented_section(**changed: Any) -> list[str]:
    """Return the lines of a section `dataset` as a comment, with the options that most datasets set.

    Args:
        changed: options that are not the defaults.
    """
    options = DatasetOptions(**changed)
    lines = ["# What `robocache export` makes of recordings. The reference of the spec has all keys.", "# dataset:"]
    for name in SUGGESTED:
        value = getattr(options, name)
        shown = f"[{', '.join(value)}]" if isinstance(value, tuple) else value
        about = keys_of(DatasetOptions)[name].metadata
        lines.append(f"#   {name}: {shown}  # {about['flag'].help or about['doc']}")
    return lines
