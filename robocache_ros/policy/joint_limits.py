"""The limits of joints from a robot's URDF, for the columns of its commands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec.run import RunOptions, is_urdf_file
from robocache_ros.untrusted_files import read_text

Float64: TypeAlias = "NDArray[np.float64]"

MAX_BYTES = 32 << 20  # of a URDF
MAX_DEPTH, MAX_JOINTS = 100, 10_000
LIMITED, MOVING = ("revolute", "prismatic"), ("revolute", "prismatic", "continuous")  # types of joints of one value
LIMITS = ("lower", "upper", "velocity")
ANGLES, LENGTHS = {"": 1.0, "rad": 1.0, "deg": 180 / math.pi}, {"": 1.0, "m": 1.0, "mm": 1000.0}


@dataclass(frozen=True)
class Joint:
    """A joint of a URDF.

    Attributes:
        type: such as `revolute`.
        lower, upper: in rad or m; infinite: no limit.
        velocity: the largest, in rad/s or m/s; 0: it is not stated.
    """

    type: str
    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = 0.0


class ColumnLimits(NamedTuple):
    """The limits of the columns of an output, (D,) float64 each; infinite: no limit."""

    lower: Float64
    upper: Float64
    max_step: Float64


def read_joints(text: str, where: str) -> dict[str, Joint]:
    """Return the joints of a URDF by name.

    Raises:
        RoboCacheError: it is not a URDF, is larger than the limits, has a document type (by which XML defines
            entities), or a limit that is not a number.
    """
    found: dict[str, Joint] = {}
    path: list[str] = []
    name = ""

    def start(tag: str, given: dict[str, str]) -> None:
        nonlocal name
        path.append(tag)
        if path[0] != "robot" or len(path) > MAX_DEPTH or len(found) > MAX_JOINTS:
            raise RoboCacheError(
                f"{where}: not a URDF of at most {MAX_JOINTS:,} joints; expand a xacro file with xacro"
            )
        if path == ["robot", "joint"]:
            name, kind = given.get("name", ""), given.get("type", "")
            found[name] = Joint(kind, 0.0, 0.0) if kind in LIMITED else Joint(kind)  # URDF: 0 where none is stated
        elif path == ["robot", "joint", "limit"]:
            kind = found[name].type
            lower, upper, velocity = (_number(given.get(key, "0"), f"{where}: {name}: {key}") for key in LIMITS)
            found[name] = Joint(kind, lower, upper, velocity) if kind in LIMITED else Joint(kind, velocity=velocity)
            if lower > upper or velocity < 0:
                raise RoboCacheError(f"{where}: {printable(name, 40)}: its limits exclude every value; correct them")

    def refuse(*_: Any) -> None:
        raise RoboCacheError(f"{where}: has a document type, which a URDF does not need; remove <!DOCTYPE ...>")

    if len(text) > MAX_BYTES:
        raise RoboCacheError(f"{where}: larger than {MAX_BYTES >> 20} MiB; give a URDF without meshes in it")
    parser = expat.ParserCreate("utf-8")  # whatever the text declares
    parser.StartElementHandler, parser.EndElementHandler = start, lambda _: path.pop()
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(text.encode(errors="replace"), True)
    except expat.ExpatError as error:
        raise RoboCacheError(f"{where}: not XML ({printable(error, 60)}); give a URDF") from None
    return found


def read_urdf_files(options: RunOptions, folder: Path) -> dict[str, str]:
    """Return the texts of the URDF files that outputs name, by their names.

    Args:
        options: of the run.
        folder: that of the spec, to which relative names belong.

    Raises:
        RoboCacheError: one cannot be read.
    """
    names = {output.urdf for output in options.outputs if is_urdf_file(output.urdf)}
    return {name: read_text(folder / name, "give the path of a URDF", MAX_BYTES) for name in names}


def column_limits(
    joints: Mapping[str, Joint],
    names: Sequence[str],
    unit: str,
    *,
    velocities: bool,
    max_speed: float,
    period_s: float,
    where: str,
) -> ColumnLimits:
    """Return the limits of columns, in their unit.

    Args:
        joints: of the robot, by name.
        names: (D,) the joint of each column.
        unit: of the columns; empty: rad and m.
        velocities: whether they are velocities.
        max_speed: largest step of a position, as a share of the joint's velocity limit; 0: steps have no limit.
        period_s: of the ticks.
        where: the key of the spec, for errors.

    Raises:
        RoboCacheError: a joint does not exist or does not move, or its limit is not stated or has another unit.
    """
    rows: list[tuple[float, float, float]] = []
    for name in names:
        joint, shown = joints.get(name), printable(name, 40)
        if joint is None or joint.type not in MOVING:
            moving = printable(", ".join(each for each, about in joints.items() if about.type in MOVING), 60)
            what = "no joint" if joint is None else f"no value of the {printable(joint.type, 20)} joint"
            raise RoboCacheError(f"{where}: {what} {shown} in the URDF; those that move are {moving or 'none'}")
        if (velocities or max_speed) and not joint.velocity:
            raise RoboCacheError(f"{where}: the URDF has no velocity limit of {shown}; add it, or use lower and upper")
        units = LENGTHS if joint.type == "prismatic" else ANGLES
        scale = units.get(unit.removesuffix("/s") if velocities else unit)
        if scale is None:
            known = " or ".join(filter(None, units))
            raise RoboCacheError(f"{where}: {shown} is in {known}, the stream in {printable(unit, 20)}; change it")
        step = max_speed * joint.velocity * period_s if max_speed and not velocities else math.inf
        low, high = (-joint.velocity, joint.velocity) if velocities else (joint.lower, joint.upper)
        rows.append((low * scale, high * scale, step * scale))
    lower, upper, max_step = np.array(rows).T
    return ColumnLimits(lower, upper, max_step)


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RoboCacheError(f"{printable(where, 100)}: {printable(text, 20)!r} is not a finite number; correct it")
    return value
