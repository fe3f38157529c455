"""Rules for the keys of a stream: values implied by its type, and valid combinations of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from robocache_ros.alignments import alignment, default_alignment, spec_alignments, units_of
from robocache_ros.spec.media import ImageSpec
from robocache_ros.spec.message_types import (
    IMAGE_TYPES,
    JOINT_TYPE,
    MAX_WIDTH,
    POSE_COMPONENTS,
    ROUNDED,
    TF_STATIC,
    TF_TYPE,
    TRANSFORM_ALIGNMENTS,
    WINDOW,
    components_of,
)
from robocache_ros.spec.problems import Problem, show_value

if TYPE_CHECKING:
    from robocache_ros.spec.stream import StreamSpec


class StreamRules:
    """Fills in values implied by the type of a stream, and checks the combination of keys."""

    def __init__(self, stream: StreamSpec) -> None:
        self.s = stream
        self.type = show_value(stream.type).strip("'")
        self.is_vector = stream.kind == "vector"
        self.is_array = stream.type.startswith("std_msgs/msg/")
        self.problems: list[Problem] = []

    def refuse(self, key: str, text: str) -> None:
        """Record a problem with a key."""
        self.problems.append(Problem(tuple(key.split(".")), text))

    def field(self) -> str | tuple[str, ...]:
        """The numeric field: set in the spec, or implied by the type."""
        if self.s.field or not self.is_vector or self.s.is_transform:
            return self.s.field
        known = "position" if self.s.type == JOINT_TYPE else "data" if self.is_array else ""
        if not known:
            self.refuse("field", f"missing; name the numeric field of {self.type}, such as pose.orientation")
        return known

    def dim(self) -> int:
        """Number of values per sample: set in the spec, or implied by names, field or type."""
        if not self.is_vector or self.s.is_transform:
            return self.s.dim or self.s.is_transform * len(POSE_COMPONENTS)
        scalar = self.is_array and not self.s.type.endswith("MultiArray")
        known = len(self.s.names) or len(components_of(self.s.paths) or ()) or int(scalar)
        if self.s.type == JOINT_TYPE and not self.s.names:
            self.refuse("names", "missing; joint states are read by joint name, list the joints in your order")
        elif not (self.s.dim or known) and self.s.field:
            self.refuse("dim", f"missing; give the number of values in {show_value(self.s.field)} of {self.type}")
        if self.s.names and self.s.dim not in (0, known):
            self.refuse("dim", f"{self.s.dim}, but names lists {known}; leave dim out")
        return self.s.dim or known

    def align(self) -> str:
        """The alignment: set in the spec, or the default of the type."""
        return self.s.align or default_alignment(self.s.kind)

    def stamp(self) -> str:
        """The source of sample times: set in the spec, or implied by the type."""
        return self.s.stamp or ("receive" if self.is_array else "header")

    def image(self) -> ImageSpec | None:
        """The processing of an image stream: set in the spec, or the default."""
        return self.s.image or (ImageSpec() if self.s.kind == "image" else None)

    def check(self) -> None:
        """Check the keys against the type and against each other."""
        s = self.s
        if s.is_transform or s.frames:
            self.check_transform()
        self.check_align()
        if s.names and s.type != JOINT_TYPE:
            self.refuse("names", f"only {JOINT_TYPE} has joint names, not {self.type}; use field and dim")
        if self.is_array and s.stamp != "receive":
            self.refuse("stamp", f"{s.stamp!r}, but {self.type} has no header; use receive")
        if s.image and s.kind != "image":
            self.refuse("image", f"{self.type} is not an image; leave it out")
        if s.kind == "cloud" and s.voxels is None:
            self.refuse("voxels", "missing; give the grid of the point cloud (origin_m, size_m, shape)")
        if s.voxels and s.kind != "cloud":
            hint = "add camera_info for a depth image" if s.kind == "image" else "leave it out"
            self.refuse("voxels", f"{self.type} is not a point cloud; {hint}")
        if s.camera_info:
            self.check_depth()
        elif s.color:
            self.refuse("color", "needs a depth image; add its camera_info, or leave color out")
        if self.is_vector:
            self.check_numbers()
        self.check_role()
        for name in ("field", "dim", "offset", "fill") if not self.is_vector else ():
            if getattr(s, name):
                self.refuse(name, f"does not apply to {self.type}; leave it out")

    def check_role(self) -> None:
        """Check the role, and the keys for actions."""
        s = self.s
        if s.is_outcome and (s.width != 1 or s.rows):
            self.refuse("role", f"{s.role} is one number per tick; give a stream of one value, or another role")
        for name in ("label", "delta_from"):
            if getattr(s, name) and s.role != "action":
                self.refuse(name, "is for actions; add role: action, or leave it out")
        if s.delta_from and s.label == "absolute":
            self.refuse("delta_from", "is for deltas; use label: delta, or leave it out")
        if s.label == "delta" and (s.is_rotation or not self.is_vector):
            self.refuse("label", "deltas are for numbers and angles, not rotations or images; use absolute")
        if s.idle is not None and (not self.is_vector or s.rows):
            self.refuse("idle", "is for vectors of one value per tick; leave it out")

    def check_numbers(self) -> None:
        """Check the keys for the values of a vector."""
        s = self.s
        rounded = [path for path in s.paths if path.rpartition(".")[2] in ROUNDED]
        if s.names and len(s.paths) > 1:
            self.refuse("field", "a list, but names reads one field by joint name; give one field")
        if s.offset and len(s.offset) != s.dim:
            self.refuse("offset", f"{len(s.offset)} values, but the stream has {s.dim}; give one for each")
        elif rounded and not s.offset:
            self.refuse("offset", f"missing; float32 rounds {rounded[0]} to about a metre; give a place nearby")
        if s.fill and (s.is_transform or s.computes):
            self.refuse("fill", f"{s.reduce or s.align!r} would blend it with measured values; use hold or nearest")
        elif s.fill and len(s.fill) not in (1, s.dim):
            self.refuse("fill", f"{len(s.fill)} values, but the stream has {s.dim}; give one, or one for each")

    def check_transform(self) -> None:
        """Check the keys of a pose from the transform tree."""
        s = self.s
        if not s.is_transform:
            self.refuse("frames", f"needs {TF_TYPE} and no field; leave it out")
        elif len({frame.lstrip("/") for frame in s.frames} - {""}) != 2:
            self.refuse("frames", "expected two frames; name them, as in [base_link, tool0]")
        elif s.dim != len(POSE_COMPONENTS):
            self.refuse("dim", f"{s.dim}, but a pose has {len(POSE_COMPONENTS)} values; leave dim out")
        elif s.align not in TRANSFORM_ALIGNMENTS:
            self.refuse("align", f"{s.align!r} is for other vectors; use {', '.join(TRANSFORM_ALIGNMENTS)}")
        if s.topic == TF_STATIC:
            self.refuse("topic", f"{TF_STATIC} is read with /tf; give the topic of the moving frames, /tf")

    def check_align(self) -> None:
        """Check that the alignment supports the values of the stream."""
        s = self.s
        if s.align == WINDOW:
            self.check_window()
            return
        for name in ("samples", "reduce"):
            if getattr(s, name):
                self.refuse(name, f"needs a window; add `align: {WINDOW}`, or leave it out")
        align = alignment(s.align)
        if align.blends and not self.is_vector:
            self.refuse_for_media()
        elif align.group > 1 and s.dim != align.group:
            self.refuse("align", f"{s.align!r} is for {align.values} ({align.group} values), not {s.dim}; use linear")
        elif (units := units_of(s.align)) and s.unit not in ("", *units):
            known = " or ".join(units)
            self.refuse("unit", f"{show_value(s.unit)}, but {s.align!r} is for {align.values} in {known}; use linear")

    def check_window(self) -> None:
        """Check the keys of a window."""
        s = self.s
        if not self.is_vector:
            self.refuse_for_media()
        elif not s.samples:
            self.refuse("samples", "missing; give the number of samples that a tick uses at most")
        elif s.dim * s.samples > MAX_WIDTH:
            self.refuse("samples", f"{s.samples} of {s.dim} values each; at most {MAX_WIDTH} values fit a tick")
        elif s.role == "action" and not s.reduce:
            self.refuse("role", "an action has one row per tick; add reduce, or use another alignment")
        elif s.on_invalid == "hold":
            self.refuse("on_invalid", "'hold' is not possible for a window; use split, mask or fail")

    def refuse_for_media(self) -> None:
        """Record the problem that the alignment supports only vectors."""
        *others, last = (name for name in spec_alignments() if not alignment(name).blends)
        self.refuse("align", f"{self.s.align!r} is for vectors; use {', '.join(others)} or {last} for {self.type}")

    def check_depth(self) -> None:
        """Check the keys of a depth image."""
        s = self.s
        if s.type not in IMAGE_TYPES:
            self.refuse("camera_info", f"is for depth images, not {self.type}; leave it out")
        known = ("x", "y", "z", *(("r", "g", "b") if s.color else ()))
        unknown = [name for name in (s.voxels.features if s.voxels else ()) if name not in known]
        if unknown:
            self.refuse("voxels.features", f"{show_value(unknown[0])} is not one of {', '.join(known)}; change it")
