"""Options of an export."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.episodes.episode_options import EpisodeOptions
from robocache_ros.export.media.video import CODECS, COPY, MAX_CRF, PRESETS, VideoSettings

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
        from robocache_ros.bags.message_files import check_msg_path  # which the start of the command line does not need

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
