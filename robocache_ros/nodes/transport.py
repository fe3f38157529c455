"""The largest message that the middleware's transport carries, compared with the size of a stream's messages.

With default settings and best effort, large images and clouds are lost, and the middleware logs nothing. The settings
of the publisher determine this. Only those of this process are known; drivers started from the same shell share them.
"""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from robocache_ros.errors import printable
from robocache_ros.resources import resource
from robocache_ros.spec import FusionSpec, StreamSpec

LARGE_IMAGE_BYTES = 1280 * 720 * 3  # a transport that carries less is warned of, if the messages' size is not known
SEGMENT_BYTES = 512 * 1024  # default size of Fast DDS' shared memory segment
PROFILES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")  # Kilted and later; Humble and Jazzy
OLD_NAME_OF_PROFILE = ("humble", "iron", "jazzy")  # later distributions warn about the old variable
# Set where this package chose the profile, and not the user: the drivers, started elsewhere, then have the defaults.
PROFILE_IS_OURS = "ROBOCACHE_TRANSPORT_PROFILE"
SOCKET_LIMIT = Path("/proc/sys/net/core/rmem_max")


@dataclass(frozen=True)
class Limit:
    """The largest message that best effort carries with the settings of this process.

    Attributes:
        nbytes: bytes of that message.
        where: the setting that limits it.
        advice: how to raise the limit.
        at_receiver: whether it also limits messages of a publisher with other settings.
    """

    nbytes: int
    where: str
    advice: str
    at_receiver: bool = False

    def exceeded(self, stream: StreamSpec, nbytes: int, qualifier: str = "") -> str:
        """The warning for messages of a known size; empty if they fit."""
        if stream.qos.reliability == "reliable" or nbytes <= self.nbytes:
            return ""
        return (
            f"{stream.name}: messages on {printable(stream.topic, 60)} have {qualifier}{_mib(nbytes)}, more than "
            f"{self.where} ({_mib(self.nbytes)}); best effort may lose them; {self.advice}"
        )

    @property
    def losses(self) -> str:
        """What best effort loses, and the way out."""
        return f"best effort loses every message larger than {self.where} ({_mib(self.nbytes)}); {self.advice}"


def limit(rmw: str, environ: Mapping[str, str] = os.environ) -> Limit | None:
    """The limit of a middleware such as `rmw_fastrtps_cpp`; None if it is not known or there is none."""
    if "fastrtps" in rmw or "fastdds" in rmw:
        if environ.get(PROFILE_IS_OURS):
            environ = {name: value for name, value in environ.items() if name not in PROFILES}
        return Limit(
            fast_dds_bytes(environ),
            "Fast DDS' shared memory segment",
            f"set {PROFILES[0]} to this package's config/fastdds.xml where the drivers are started",
        )
    if "cyclone" in rmw:
        return Limit(
            _socket_bytes(),
            "a socket's receive buffer",
            "raise net.core.rmem_max and CycloneDDS' SocketReceiveBufferSize to 64 MB",
            at_receiver=True,
        )
    return None


def use_profile(environ: MutableMapping[str, str] = os.environ) -> None:
    """Use this package's Fast DDS profile in this process, unless the user chose one; call it before rclpy.init."""
    if not any(environ.get(name) for name in PROFILES):
        names = PROFILES if environ.get("ROS_DISTRO") in OLD_NAME_OF_PROFILE else PROFILES[:1]
        environ.update(dict.fromkeys(names, str(resource("config", "fastdds.xml"))))
        environ[PROFILE_IS_OURS] = "1"


def warnings(spec: FusionSpec, found: Limit | None, payload_bytes: Mapping[str, int]) -> list[str]:
    """A line for each stream whose messages exceed the limit, as far as this is known before a message arrives."""
    if found is None:
        return []
    lines, unknown = [], []
    for stream in spec.feeds:
        if stream.name in payload_bytes:
            lines.append(found.exceeded(stream, payload_bytes[stream.name], "up to "))
        elif stream.image and stream.image.crop and stream.type.endswith("/Image"):
            top, left, height, width = stream.image.crop
            lines.append(found.exceeded(stream, (top + height) * (left + width), "at least "))  # a byte a pixel
        elif stream.kind != "vector" and not stream.type.endswith("/CompressedImage"):
            unknown += [stream.name] if stream.qos.reliability != "reliable" else []
    if unknown and found.nbytes < LARGE_IMAGE_BYTES:
        lines.append(f"{printable(', '.join(unknown), 80)}: {found.losses}")
    return [line for line in lines if line]


def fast_dds_bytes(environ: Mapping[str, str]) -> int:
    """Bytes of the shared memory segment in the Fast DDS profile; those of a socket if it disables shared memory."""
    name = next((environ[key] for key in PROFILES if environ.get(key)), "")
    if not name:
        by_udp = environ.get("FASTDDS_BUILTIN_TRANSPORTS", "DEFAULT").partition("?")[0] in ("UDPv4", "UDPv6")
        return _socket_bytes() if by_udp else SEGMENT_BYTES
    try:
        root = ElementTree.parse(name).getroot()
    except (OSError, ElementTree.ParseError):
        return SEGMENT_BYTES  # Fast DDS logs that it cannot read the file, and uses its defaults
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]  # without its namespace
    segments = {
        descriptor.findtext("transport_id", "").strip(): _segment_bytes(descriptor.findtext("segment_size", ""))
        for descriptor in root.iter("transport_descriptor")
        if descriptor.findtext("type", "").strip() == "SHM"
    }
    for participant in root.iter("participant"):
        if participant.get("is_default_profile") == "true":
            used = [(entry.text or "").strip() for entry in participant.iter("transport_id")]
            sizes = [segments[entry] for entry in used if entry in segments]
            builtin = participant.find(".//useBuiltinTransports")
            if builtin is None or (builtin.text or "").strip() != "false":
                sizes.append(SEGMENT_BYTES)
            return max(sizes, default=_socket_bytes())
    return SEGMENT_BYTES


def _segment_bytes(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return SEGMENT_BYTES


def _socket_bytes() -> int:
    try:
        return int(SOCKET_LIMIT.read_text())
    except (OSError, ValueError):
        return SEGMENT_BYTES


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.2f} MiB"
