"""IDL, as recordings hold it, becomes the .msg text of the same types."""

from __future__ import annotations

import pytest

from robocache_ros.decode.definitions import message_type, msg_of_idl
from robocache_ros.errors import RoboCacheError

LINE = "=" * 80
IDL = (
    f"{LINE}\nIDL: my_msgs/msg/Rig\n"
    """// generated from rosidl_adapter/resource/msg.idl.em
#include "geometry_msgs/msg/Vector3.idl"
#include "std_msgs/msg/Header.idl"

module my_msgs {
  module msg {
    typedef double double__9[9];
    typedef my_msgs::msg::Part my_msgs__msg__Part__2[2];
    module Rig_Constants {
      const uint8 ON = 1;
    };
    @verbatim (language="comment", text=
      "A rig (see http://example.com)." "\\n"
      "It has \\"parts\\".")
    struct Rig {
      std_msgs::msg::Header header;
      @unit (value="rad")
      double angle;
      @default (value=3)
      uint8 mode;
      boolean on;
      octet raw;
      long long count;
      double__9 matrix;
      my_msgs__msg__Part__2 parts;
      sequence<float> data;
      sequence<my_msgs::msg::Part, 4> more;
      string<8> name;
      string text, note;
      float grid[2][3];
    };
  };
};
"""
    f"{LINE}\nIDL: my_msgs/msg/Part\n"
    """
module my_msgs { module msg { /* one of the parts */
  struct Part { geometry_msgs::msg::Vector3 position; unsigned short id; };
}; };
"""
)
MSG = """std_msgs/Header header
float64 angle
uint8 mode
bool on
byte raw
int64 count
float64[9] matrix
my_msgs/Part[2] parts
float32[] data
my_msgs/Part[<=4] more
string<=8 name
string text
string note
float32[6] grid
===
MSG: my_msgs/Part
geometry_msgs/Vector3 position
uint16 id
"""


def test_idl_gives_the_type_that_the_same_msg_text_gives() -> None:
    name = "my_msgs/msg/Rig"
    assert message_type(name, {name: msg_of_idl(name, IDL)}) == message_type(name, {name: MSG})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "module a { module msg { struct B { double x; }; }; };",  # another type
        "module my_msgs { module msg { struct Rig { double x",
        "module my_msgs { module msg { struct Rig { sequence<double__3> x; }; }; };",
        "module my_msgs { module msg { struct Rig { double x[n]; }; }; };",
        "module my_msgs { module msg { union Rig switch (long) { case 1: double x; }; }; };",
        "}; }; }",
    ],
)
def test_what_is_not_read_is_no_definition(text: str) -> None:
    name = "my_msgs/msg/Rig"
    found = msg_of_idl(name, text)
    if found:  # a type that the text does not define
        with pytest.raises(RoboCacheError, match="no definition of my_msgs/msg/double__3"):
            message_type(name, {name: found})


@pytest.mark.timeout(20)  # a scan that begins anew at every character takes hours
@pytest.mark.parametrize("part", ["/*", '"\\', '\\"', "//", "@a(", "typedef ", "[", "::", "<"])
def test_a_megabyte_of_one_thing_takes_no_time_to_speak_of(part: str) -> None:
    assert msg_of_idl("my_msgs/msg/Rig", part * (1_000_000 // len(part))) == ""
