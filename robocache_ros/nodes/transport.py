"""What the middleware in force can carry, against what the spec's streams send: said at the start, not found out later.

Default settings lose whole images and clouds under best effort, without a word from the middleware. The publisher's
settings decide; those of this process are known, and a driver started from the same shell has the same.
"""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

from robocache_ros.spec import FusionSpec, StreamSpec

SEGMENT_BYTES = 512 * 1024  # of Fast DDS' shared memory, where nothing else is said
PROFILES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")  # Kilted and later; Humble and Jazzy
ASSUMED_BYTES = {"image": 640 * 480 * 3, "cloud": 100_000 * 16}  # of a message whose size nothing in the spec tells
SOCKET_LIMIT = Path("/proc/sys/net/core/rmem_max")


def warnings(spec: FusionSpec, rmw: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """A line for each stream whose messages will be lost.

    Args:
        spec: its best effort streams of raw images and clouds are looked at.
        rmw: the middleware, such as `rmw_fastrtps_cpp`.
        environ: where its settings are named.
    """
    if "fastrtps" in rmw or "fastdds" in rmw:
        room, what = fast_dds_bytes(environ), "Fast DDS' shared memory segment"
        cure = f"set {PROFILES[0]} to this package's config/fastdds.xml, for the drivers too"
    elif "cyclone" in rmw:
        room, what = _socket_bytes(), "a socket's receive buffer (net.core.rmem_max)"
        cure = (
            "raise net.core.rmem_max to 64 MB and CycloneDDS' SocketReceiveBufferSize with it, or use its shared memory"
        )
    else:
        return []
    found = []
    for stream in spec.feeds:
        size = _message_bytes(stream)
        if stream.qos.reliability == "best_effort" and size > room:
            found.append(
                f"{stream.name}: messages of {stream.topic} are lost where they are larger than {what}, "
                f"{room / 2**20:.2f} MiB, and best effort does not send them again (expected: {size / 2**20:.2f} MiB); "
                f"{cure}"
            )
    return found


def fast_dds_bytes(environ: Mapping[str, str]) -> int:
    """Bytes of the shared memory segment that Fast DDS uses by its profile; those of a socket where it uses none."""
    name = next((environ[key] for key in PROFILES if environ.get(key)), "")
    if not name:
        by_udp = environ.get("FASTDDS_BUILTIN_TRANSPORTS", "DEFAULT").partition("?")[0] in ("UDPv4", "UDPv6")
        return _socket_bytes() if by_udp else SEGMENT_BYTES
    try:
        root = ElementTree.parse(name).getroot()
    except (OSError, ElementTree.ParseError):
        return SEGMENT_BYTES  # Fast DDS says that it could not read it, and goes on without
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]  # without its namespace
    segments = {
        descriptor.findtext("transport_id", "").strip(): int(descriptor.findtext("segment_size", str(SEGMENT_BYTES)))
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


def _socket_bytes() -> int:
    try:
        return int(SOCKET_LIMIT.read_text())
    except (OSError, ValueError):
        return SEGMENT_BYTES


def _message_bytes(stream: StreamSpec) -> int:
    """What a message of a stream takes, as far as the spec tells; 0 of those that are small on any transport."""
    if stream.kind == "vector" or stream.type.endswith("/CompressedImage"):
        return 0
    if stream.image and stream.image.crop:
        top, left, height, width = stream.image.crop
        return max((top + height) * (left + width) * 3, ASSUMED_BYTES["image"])
    return ASSUMED_BYTES[stream.kind]
