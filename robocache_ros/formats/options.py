"""Options of an export, with their defaults and checks."""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.video import CODECS, COPY, MAX_CRF, PRESETS, VideoSettings
from robocache_ros.spec.stream import topic_name

# Options of an export that decide which ticks are in which episode, and which action belongs to an observation.


ACTIONS = ("absolute", "delta", "next-observation", "next-delta")
MAX_OFFSET = 1000  # ticks
MAX_RATE_HZ = 1000
_NEAR = 0.05  # largest distance of an offset in ms from a whole number of ticks, in ticks


@dataclass(frozen=True, kw_only=True)
class EpisodeOptions:
    """Options that decide the rows of an episode."""

    rate_hz: int | None = None  # ticks per second; None: as in the spec
    episode_topic: str = ""  # topic whose messages begin and end episodes
    episode_file: bool = True  # use episodes.yaml or episodes.csv of a recording, unless there is an episode topic
    split_s: float = 0.0  # longest episode in seconds; longer ones become several; 0: no limit
    trim_idle_s: float = 0.0  # leave out ticks without motion for this long; 0: keep them
    task_topic: str = ""  # topic of std_msgs/String with the task
    action: str = "absolute"  # absolute: commands; delta: see `StreamSpec.delta_from`; next-observation: later states
    action_from: tuple[str, ...] = ()  # delta: the observation to subtract; next-observation: the states, else all
    action_offset: int | str = (
        ""  # which later tick the action of a row is from: ticks, or "40ms"; "": 0, or 1 for next
    )

    def __post_init__(self) -> None:
        if self.rate_hz is not None and not 1 <= self.rate_hz <= MAX_RATE_HZ:
            raise RoboCacheError(f"rate_hz: {self.rate_hz} is not a rate; use 1 to {MAX_RATE_HZ}")
        if self.action not in ACTIONS:
            raise RoboCacheError(f"action: {printable(self.action, 40)!r} is not one of {', '.join(ACTIONS)}")
        for name in ("split_s", "trim_idle_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise RoboCacheError(f"{name}: {getattr(self, name)} is not a number of seconds; use 0 or more")
        for name in ("episode_topic", "task_topic"):
            topic = getattr(self, name)
            if topic and not topic_name.accepts(topic):
                raise RoboCacheError(f"{name}: {printable(topic, 60)!r} is not an absolute topic name; write /topic")
        if isinstance(self.action_from, str):
            raise RoboCacheError(f"action_from: {printable(self.action_from, 60)!r} is one name; give a list of names")
        self._offset()

    @property
    def is_next(self) -> bool:
        """Whether actions are made of observations."""
        return self.action.startswith("next-")

    def offset_ticks(self, rate_hz: int) -> int:
        """Return how many ticks after a row its action is, at a rate.

        Errors:
            RoboCacheError: the offset is not a whole number of ticks, or out of range.
        """
        number, in_ms = self._offset()
        ticks = number * rate_hz / 1000 if in_ms else number
        if abs(ticks - round(ticks)) > _NEAR:
            period = f"{1000 / rate_hz:.4g} ms"
            raise RoboCacheError(f"action_offset: {number:g} ms is {ticks:.2f} ticks of {period}; use whole ticks")
        least = int(self.is_next)
        if not least <= round(ticks) <= MAX_OFFSET:
            raise RoboCacheError(f"action_offset: {round(ticks)} ticks are not possible; use {least} to {MAX_OFFSET}")
        return round(ticks)

    def _offset(self) -> tuple[float, bool]:
        """Return the given offset, and whether it is in ms."""
        given = str(self.action_offset).strip() or str(int(self.is_next))
        found = re.fullmatch(r"(-?)([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms)?", given)
        if not found or (not found[3] and "." in found[2]):
            raise RoboCacheError(f"action_offset: {printable(given, 40)!r} is not an offset; write 2 (ticks) or 40ms")
        if found[1]:
            raise RoboCacheError(
                f"action_offset: {given} is before the row; set latency_ms of the action's stream instead"
            )
        return float(found[2]), bool(found[3])


# Options of an export.


MEDIA = ("video", "image", "none")
JPEG = ("cpu", "gpu")
DEPTH = ("arrays", "video")
VOXELS = ("dense", "sparse")
ON_INVALID = ("spec", "split", "hold", "mask", "drop", "fail")
MAX_POINTS = 1 << 20  # of a cloud
MAX_LINE_CHARACTERS = 1000  # of a task or a name
_NOT_TEXT = ("Cc", "Cs", "Zl", "Zp")  # control characters, surrogates, line and paragraph separators


@dataclass(frozen=True)
class ExportOptions(EpisodeOptions):
    """Options for the conversion of recordings to datasets."""

    formats: tuple[str, ...] = ("lerobot",)
    visibility: str = "ideal"  # ideal: ticks use every sample; deployed: only samples that had arrived on the robot
    compare_visibility: bool = False  # also compute the validity under the other visibility, for the report
    media: str = "video"  # store camera images as video where the format can, as PNG, or not at all
    codec: str = (
        "auto"  # of videos: auto, which is the usual one of each format, av1, h264, or copy: that of video topics
    )
    crf: int | None = None  # quality, speed and distance of key frames of videos; see VideoSettings
    preset: str | None = None
    gop: int | None = None
    jpeg: str = "cpu"  # decoder of jpeg images: cpu, or gpu, which is nvJPEG and differs by a few counts
    depth: str = "arrays"  # store depth images as lossless arrays, or in the format lerobot as 12-bit video
    voxels: str = "dense"  # of the format lerobot: store whole voxel grids, or the voxels that are not empty
    points: int = 0  # voxels with the features x, y, z become clouds of so many points; 0: they stay grids
    task: str = "robot task"  # description of the task, on which policies are conditioned
    robot_type: str = "unknown"
    on_invalid: str = "spec"  # applies to every stream; spec: use the value in the spec for each stream
    trim: bool = True  # if invalid ticks are masked, omit those at both ends
    min_frames: int = 2  # shorter episodes are omitted
    min_valid: float = (
        0.25  # minimum share of ticks in episodes, from the first episode on; below it the recording is refused
    )

    msg_path: tuple[str, ...] = ()  # folders with ROS packages that define messages which recordings do not define

    def __post_init__(self) -> None:
        super().__post_init__()
        from robocache_ros.bags.reader import check_msg_path  # which the start of the command line does not need

        check_msg_path(self.msg_path)
        if isinstance(self.formats, str) or not self.formats:
            raise RoboCacheError(f"formats: {self.formats!r} is not a list of formats; use for example ('lerobot',)")
        if len(set(self.formats)) < len(self.formats):
            raise RoboCacheError(f"formats: {', '.join(self.formats)} has one twice; name each format once")
        for name, choices in (
            ("media", MEDIA),
            ("codec", ("auto", *CODECS, COPY)),
            ("jpeg", JPEG),
            ("depth", DEPTH),
            ("voxels", VOXELS),
            ("visibility", ("ideal", "deployed")),
            ("on_invalid", ON_INVALID),
        ):
            if getattr(self, name) not in choices:
                raise RoboCacheError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(choices)}")
        self._check_video()
        if self.depth == "video" and "lerobot" not in self.formats:
            raise RoboCacheError("depth: only the format lerobot has depth video; add it, or use depth arrays")
        if self.depth == "video" and self.media == "none":
            raise RoboCacheError(
                "depth: media none exports no images, depth included; use media video or image, or leave depth out"
            )
        if not 0 <= self.points <= MAX_POINTS:
            raise RoboCacheError(f"points: {self.points} is not from 0 to {MAX_POINTS:,}; give the points of a cloud")
        if self.min_frames < 1:
            raise RoboCacheError(f"min_frames: {self.min_frames} is below 1; an episode has one frame at least")
        if not 0 <= self.min_valid <= 1:
            raise RoboCacheError(f"min_valid: {self.min_valid:g} is not a share; use 0 to 1")
        if not self.task.strip():
            raise RoboCacheError("task: is empty; say in words what the robot does")
        check_line("task", self.task)
        check_line("robot_type", self.robot_type)

    @property
    def video_settings(self) -> VideoSettings:
        """Settings of the encoders of videos."""
        return VideoSettings(self.crf, self.preset, self.gop)

    def _check_video(self) -> None:
        settings = self.video_settings
        if self.codec not in PRESETS:
            return
        if settings.preset is not None and settings.preset not in PRESETS[self.codec]:
            raise RoboCacheError(
                f"preset: {settings.preset!r} is not one of {self.codec}; use one of {', '.join(PRESETS[self.codec])}"
            )
        if settings.crf is not None and settings.crf > MAX_CRF[self.codec]:
            raise RoboCacheError(f"crf: {settings.crf} is not in 0..{MAX_CRF[self.codec]}, the range of {self.codec}")


def check_line(name: str, text: str) -> None:
    """Refuse a task or a name that is longer than MAX_LINE_CHARACTERS, or is not one line of text."""
    if len(text) > MAX_LINE_CHARACTERS:
        raise RoboCacheError(f"{name}: {len(text):,} characters; use {MAX_LINE_CHARACTERS:,} at most")
    if any(unicodedata.category(character) in _NOT_TEXT for character in text):
        raise RoboCacheError(f"{name}: {printable(text, 60)!r} is not a line of text; remove its control characters")
