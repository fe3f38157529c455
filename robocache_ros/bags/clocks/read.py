"""Determines the timeline of a recording from as few messages as possible."""

from __future__ import annotations

from collections.abc import Collection

from robocache_ros.bags.clocks.choose import PROBE, is_by_log, timeline_of, with_a_say
from robocache_ros.bags.clocks.timeline import Timeline
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.stats import Recorder, is_stamped
from robocache_ros.spec import TF_STATIC


def read_timeline(bag: Bag, devices: Collection[str] = ()) -> Timeline:
    """Return the timeline of a recording. `info`, exports and replays use the same rule, for any choice of streams.

    Reads the first messages of the stamped topics. Reads all of them only if stamps are not on the log clock.

    Args:
        bag: the recording.
        devices: topics with a clock of their own.
    """
    stamped = {name for name, topic in bag.topics.items() if is_stamped(topic.type, bag.definitions)} - {TF_STATIC}
    counts = {name: bag.topics[name].count for name in stamped}
    names = with_a_say(counts)
    recorder = Recorder([bag.topics[name] for name in names], bag.definitions)
    awaited = {name: min(PROBE, counts[name]) for name in names if name not in devices}
    for message in recorder.watch(bag.messages(names)) if names else ():
        if message.topic in awaited:
            awaited[message.topic] -= 1
            if not awaited[message.topic]:
                del awaited[message.topic]
                if not awaited and is_by_log({k: v for k, v in recorder.times().items() if k not in devices}):
                    return Timeline()
    return timeline_of(recorder.times(), devices)
