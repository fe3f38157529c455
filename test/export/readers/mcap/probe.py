"""Runs under the mcap library with ROS 2 support: reads recordings, and writes the messages of each topic to a file."""

import json
import os
import sys

from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory


def reported(message):
    """The fields of a message as plain values; bytes as lists of numbers."""
    if hasattr(message, "__slots__"):
        return {name: reported(getattr(message, name)) for name in message.__slots__}
    if isinstance(message, (bytes, bytearray, memoryview)):
        return list(message)
    if isinstance(message, (list, tuple)):
        return [reported(part) for part in message]
    return message


episodes = []
for path in sys.argv[1:]:
    topics = {}
    with open(path, "rb") as file:
        reader = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        counts = reader.get_summary().statistics.message_count
        for schema, channel, message, decoded in reader.iter_decoded_messages():
            topic = topics.setdefault(channel.topic, {"type": schema.name, "encoding": schema.encoding, "messages": []})
            topic["messages"].append([message.log_time, reported(decoded)])
    answer = os.path.abspath(f"{os.path.basename(path)}.json")
    with open(answer, "w") as file:
        json.dump(topics, file)
    episodes.append({"file": answer, "count": counts})

print(json.dumps({"episodes": episodes}))  # noqa: T201
