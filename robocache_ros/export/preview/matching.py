"""Whether a recording has the topics, types, fields, joints and frames that a spec names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

from robocache_ros.bags.reader import Bag
from robocache_ros.decode import DecodeError, make_decoder
from robocache_ros.decode.cdr.definitions import message_type
from robocache_ros.decode.cdr.whole_message import read_message
from robocache_ros.decode.transforms import read_transforms
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.spec import TF, TF_STATIC, TF_TYPE, FusionSpec, StreamSpec
from robocache_ros.spec.problems import suggestion

SAMPLES = 16  # messages of a topic that are decoded
TRANSFORMS = 2000  # messages of /tf and /tf_static that are searched for frames
_NAMED = 5  # joints and topics in a problem


@dataclass(frozen=True)
class StreamMatch:
    """How a stream of a spec matches a recording.

    Attributes:
        stream: its name; `<stream>/color` and `<stream>/camera_info` for the companions of a depth image.
        topic, type: as in the spec.
        messages: number of messages on the topic.
        problems: why it does not match, each `<what is wrong>; <what to do>`; empty if it matches.
    """

    stream: str
    topic: str
    type: str
    messages: int
    problems: tuple[str, ...]


def match(bag: Bag, spec: FusionSpec) -> tuple[StreamMatch, ...]:
    """Compare a spec with an open recording. Reads its index, and the first messages of each topic."""
    frames = _frames(bag) if spec.framed or spec.transforms else frozenset()
    found = []
    for feed in bag.feeds(spec):
        topic = bag.topics.get(feed.topic)
        problems = [_topic(bag, feed)] if topic is None else list(_messages(bag, feed))
        if not any(problems):
            problems = list(_chain(feed, frames))
        found.append(StreamMatch(feed.name, feed.topic, feed.type, topic.count if topic else 0, tuple(problems)))
    return tuple(found)


def _topic(bag: Bag, feed: StreamSpec) -> str:
    """Describe a missing topic; a topic of the same type is the likelier one to be meant."""
    same_type = [name for name, topic in bag.topics.items() if topic.type == feed.type]
    meant = suggestion(feed.topic, same_type) or suggestion(feed.topic, bag.topics)
    if not meant and same_type:
        meant = f"of its type {'is' if len(same_type) == 1 else 'are'} {_listed(same_type)}"
    return f"no topic {printable(feed.topic, 80)}; {meant or 'remove the stream, or leave the recording out'}"


def _messages(bag: Bag, feed: StreamSpec) -> Iterator[str]:
    """Describe what is wrong with the messages of a stream."""
    topic = bag.topics[feed.topic]
    if topic.type != feed.type:
        yield f"type: {printable(topic.type)} in the recording, {feed.type} in the spec; change the spec"
        return
    if not topic.count:
        yield f"{printable(feed.topic, 80)} has no messages; remove the stream, or leave the recording out"
        return
    if feed.is_transform or feed.name == TF:
        return
    try:
        decoder = make_decoder(feed, bag.definitions)
    except RoboCacheError as error:
        yield str(error).removeprefix(f"streams.{feed.name}.")
        return
    samples = [bytes(message.data) for message in islice(bag.messages([feed.topic]), SAMPLES)]
    refused: Counter[str] = Counter()
    for data in samples:
        try:
            decoder.decode_cdr(data)
        except DecodeError as error:
            if error.cause == "no_key_frame":  # one may follow
                continue
            joints = _joints(bag, feed, data) if error.cause == "joint_missing" else ""
            refused[joints or f"{error}; correct the stream"] += 1
    if samples and refused.total() == len(samples):  # else some are read; an export counts the others
        yield refused.most_common(1)[0][0]


def _joints(bag: Bag, feed: StreamSpec, data: bytes) -> str:
    """Describe the joints that a message does not have."""
    try:
        held = list(read_message(message_type(feed.type, bag.definitions), data).name)
    except RoboCacheError:
        return ""
    missing = [name for name in feed.names if name not in held]
    meant = suggestion(missing[0], held) or f"{printable(feed.topic, 60)} has {_listed(held) or 'no joints'}"
    return f"names: no joint {_listed(missing)}; {meant}"


def _frames(bag: Bag) -> frozenset[str]:
    """Return the frames of the first transforms of a recording."""
    topics = sorted(topic.name for topic in bag.topics.values() if topic.type == TF_TYPE)
    known: set[str] = set()
    for message in chain.from_iterable(islice(bag.messages([name]), TRANSFORMS) for name in topics):
        try:
            known.update(*((t.parent, t.child) for t in read_transforms(message.data)))
        except DecodeError:
            continue
    return frozenset(known)


def _chain(feed: StreamSpec, frames: frozenset[str]) -> Iterator[str]:
    """Describe the frames of a stream that the recording does not have."""
    wanted = feed.frames if feed.is_transform else (feed.voxels.frame,) if feed.voxels and feed.voxels.frame else ()
    for frame in wanted:
        if frame and frame not in frames:
            meant = suggestion(frame, frames) or (f"the frames are {_listed(sorted(frames))}" if frames else "")
            tell = meant or f"the recording has no transforms on {TF} and {TF_STATIC}; remove the stream"
            yield f"frames: no frame {printable(frame, 60)!r}; {tell}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return printable(", ".join(names[:_NAMED]), 120) + more
