"""Message definitions: the common table, texts as bags carry them, installed classes."""

import numpy as np
import pytest
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from robocache_ros.bags.reader import RELEASES, find_release
from robocache_ros.decode import definitions_of, make_decoder
from robocache_ros.decode.definitions import (
    COMMON,
    Array,
    Primitive,
    Sequence,
    Text,
    describe,
    message_type,
    msg_of_idl,
)
from robocache_ros.errors import RoboCacheError
from test.decode.conftest import make_stream

LINE = "=" * 80
THING = "my_msgs/msg/Thing"


@pytest.mark.parametrize("store", [Stores.ROS2_HUMBLE, Stores.ROS2_JAZZY, Stores.ROS2_KILTED])
def test_the_common_types_are_those_of_every_distribution(store):
    types = get_typestore(store)
    known = [name for name in COMMON if not name.startswith(("ackermann_msgs/", "control_msgs/"))]
    for name in set(known) - {"sensor_msgs/msg/Range"}:
        assert message_type(name) == message_type(name, {name: types.generate_msgdef(name, ros_version=2)[0]}), name


@pytest.mark.parametrize("store", [Stores.ROS2_HUMBLE, Stores.ROS2_KILTED])
def test_a_range_is_read_with_and_without_the_variance_that_iron_added(store):
    types = get_typestore(store)
    header = types.types["std_msgs/msg/Header"](types.types["builtin_interfaces/msg/Time"](1, 2), "sonar")
    variance = {} if store is Stores.ROS2_HUMBLE else {"variance": 0.5}
    message = types.types["sensor_msgs/msg/Range"](
        header=header, radiation_type=0, field_of_view=0.1, min_range=0.2, max_range=4.0, range=1.5, **variance
    )
    stream = make_stream("sensor_msgs/msg/Range", field="range", dim=1)
    data = bytes(types.serialize_cdr(message, "sensor_msgs/msg/Range"))
    assert make_decoder(stream).decode_cdr(data).value.tolist() == [1.5]


@pytest.mark.ros
@pytest.mark.parametrize("package", sorted({name.partition("/")[0] for name in COMMON} - {"builtin_interfaces"}))
def test_the_common_types_are_those_installed(package):
    from importlib import import_module

    pytest.importorskip(package, reason="a package of ROS that is not on PyPI")
    for name in COMMON:
        if name.startswith(f"{package}/") and name != "sensor_msgs/msg/Range":
            installed = getattr(import_module(f"{package}.msg"), name.rpartition("/")[2])
            assert message_type(name) == message_type(name, definitions_of(installed)), name


@pytest.mark.ros
def test_an_installed_class_gives_a_decoder_for_a_type_that_is_not_common():
    from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
    from rclpy.serialization import serialize_message

    message = DiagnosticArray(status=[DiagnosticStatus(name="n", level=b"\x02")])
    stream = make_stream("diagnostic_msgs/msg/DiagnosticArray", field="status[0].level", dim=1)
    decoder = make_decoder(stream, definitions_of(DiagnosticArray))
    assert decoder.decode_cdr(serialize_message(message)).value.tolist() == [2.0]


def test_every_form_of_a_field_in_a_message_class_is_read():
    forms = {"double[3]": "float64[3]", "sequence<float>": "float32[]", "sequence<octet, 4>": "byte[<=4]"}
    forms |= {"boolean": "bool", "sequence<string<7>, 2>": "string[<=2]", "string<9>[2]": "string[2]"}

    class Thing:
        __module__ = "my_msgs.msg._thing"

        @staticmethod
        def get_fields_and_field_types():
            return {f"f{number}": form for number, form in enumerate(forms)}

    kinds = [kind for _, kind in message_type(THING, definitions_of(Thing)).fields]
    assert [describe(kind) for kind in kinds] == [*forms.values()]
    assert [kind.element for kind in kinds[-2:]] == [Text(7), Text(9)]


def test_what_is_no_message_class_is_refused():
    with pytest.raises(RoboCacheError, match="is not a ROS 2 message class"):
        definitions_of(int)


def test_every_form_of_a_field_is_read():
    text = """
    # a comment
    int32 LIMIT=5          # a constant
    string NAME = "a # b"
    float64[3] fixed       # comment behind
    float32[] open
    uint8[<=4] bounded
    string<=7[<=2] names
    bool flag true
    std_msgs/Header header
    """
    fields = dict(message_type(THING, {THING: text}).fields)
    header = fields.pop("header")
    assert describe(header) == "std_msgs/msg/Header"
    assert fields == {
        "fixed": Array(Primitive("float64", "f", 8), 3),
        "open": Sequence(Primitive("float32", "f", 4)),
        "bounded": Sequence(Primitive("uint8", "u", 1), 4),
        "names": Sequence(Text(7), 2),
        "flag": Primitive("bool", "b", 1),
    }


def test_a_recordings_own_definition_goes_before_the_common_one():
    text = f"geometry_msgs/Point p\n{LINE}\nMSG: geometry_msgs/Point\nfloat32 x"
    point = dict(message_type(THING, {THING: text}).fields)["p"]
    assert dict(point.fields) == {"x": Primitive("float32", "f", 4)}


def test_types_may_be_named_without_msg_and_within_their_package():
    text = f"Part part\n{LINE}\nMSG: my_msgs/Part\nHeader header"
    part = dict(message_type("my_msgs/Thing", {"my_msgs/Thing": text}).fields)["part"]
    assert part.name == "my_msgs/msg/Part"
    assert dict(part.fields)["header"].name == "std_msgs/msg/Header"


def test_a_message_without_fields_takes_one_byte():
    assert len(message_type("std_msgs/msg/Empty", {"std_msgs/msg/Empty": "\n"}).fields) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Missing m", r"no definition of my_msgs/msg/Missing \(needed by my_msgs/msg/Thing\)"),
        ("Thing t", "contains itself"),
        ("module my_msgs { };", "expected .msg text, not IDL"),
        ("float64[0] x", "has no elements"),
        ("float64 x\nfloat32 x", "two fields have the same name"),
        (f"float64 x\n{LINE}\nIDL: my_msgs/msg/Other\n", "expected 'MSG: package/Type'"),
    ],
)
def test_a_definition_that_cannot_be_read_is_refused(text, problem):
    with pytest.raises(RoboCacheError, match=problem):
        message_type(THING, {THING: text})


def nested(levels, lines=1, array=""):
    """A type whose every level has `lines` fields of the next, or of arrays of it."""
    parts = [f"\nMSG: my_msgs/T{i}\n" + "".join(f"T{i + 1}{array} t{k}\n" for k in range(lines)) for i in range(levels)]
    return LINE.join(["T0 t\n", *parts, f"\nMSG: my_msgs/T{levels}\nfloat64 x\nuint8 y"])


@pytest.mark.parametrize(
    "text",
    [
        nested(5000),
        nested(10, lines=100),
        nested(6, array="[1024]"),
        "float64[2147483647] x",
        "float64[99999999999] x",
        f"float64[{'9' * 5000}] x",
        f"string<={'9' * 5000} x",
        "".join(f"float64 x{i}\n" for i in range(10**5)),
        "# a comment\n" * 10**5,
        "".join(f"{LINE}\nMSG: my_msgs/T{i}\n" for i in range(2000)),
        f"my_msgs/\x1b[31m{'M' * 300} m",
        "M" * 5000 + " m",
        f"{LINE}\n\x1b[31m",
        f"{LINE}\nMSG: my_msgs/Other\n{LINE}\n{'x' * 999}",
    ],
    ids=lambda text: f"{text[:20]}... of {len(text)}",
)
def test_a_definition_that_asks_for_too_much_is_refused_in_one_line(text):
    with pytest.raises(RoboCacheError) as error:
        make_decoder(make_stream(THING, field="x", dim=1, stamp="receive"), {THING: f"{text}\n"})
    assert len(str(error.value)) < 200
    assert str(error.value).isprintable()


@pytest.mark.parametrize("text", [nested(20), nested(3, lines=10), nested(3, array="[64]")], ids=range(3))
def test_a_definition_as_large_as_real_ones_is_read(text):
    assert dict(message_type(THING, {THING: text}).fields)


def test_an_array_of_pairs_that_cannot_be_laid_out_is_walked():
    text = nested(3, array="[64]") + "\n"  # 2^18 pairs
    stream = make_stream(THING, field="t.t0[1].t0[2].t0[3].y", dim=1, stamp="receive")
    data = bytearray(4 + 16 * 64**3)
    data[1] = 1
    data[4 + 16 * ((1 * 64 + 2) * 64 + 3) + 8] = 7
    assert make_decoder(stream, {THING: text}).decode_cdr(bytes(data)).value.tolist() == [7.0]


def test_a_type_with_a_wide_string_is_refused_by_name():
    with pytest.raises(RoboCacheError, match="wstring fields are not supported"):
        make_decoder(make_stream(THING, field="x", dim=1, stamp="receive"), {THING: "wstring w\nfloat64 x"})


STATE = "control_msgs/msg/JointTrajectoryControllerState"


def message(text, joints, feedback=True):
    """A controller's state as a release serializes it; its optional lists are empty or not."""
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(get_types_from_msg(text, STATE))
    types = store.types
    duration = types["builtin_interfaces/msg/Duration"](0, 0)
    some, none = np.linspace(0, 1, joints), np.empty(0)
    single = types["trajectory_msgs/msg/JointTrajectoryPoint"](some, some if feedback else none, none, none, duration)
    several = types["trajectory_msgs/msg/MultiDOFJointTrajectoryPoint"]([], [], [], duration)
    header = types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](7, 8), "base")
    values = {"header": header, "joint_names": [f"joint_{k}" for k in range(joints)], "multi_dof_joint_names": []}
    names = [line.split()[1] for line in text.strip().splitlines()]
    fields = [values.get(name, several if name.startswith("multi_dof_") else single) for name in names]
    return bytes(store.serialize_cdr(types[STATE](*fields), STATE))


@pytest.mark.parametrize("text", RELEASES[STATE])
@pytest.mark.parametrize("joints", [1, 2, 6, 7])
def test_messages_tell_the_release_that_serialized_them(text, joints):
    assert find_release(STATE, [message(text, joints), message(text, joints, feedback=False)]) == text


def test_messages_of_no_known_release_have_none():
    data = message(RELEASES[STATE][0], 6)
    assert find_release(STATE, [data[:-8]]) is None
    assert find_release(STATE, [data + bytes(8)]) is None
    assert find_release(STATE, []) is None
    assert find_release("sensor_msgs/msg/JointState", [data]) is None


RIG = "my_msgs/msg/Rig"
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


def test_idl_gives_the_type_that_the_same_msg_text_gives():
    assert message_type(RIG, {RIG: msg_of_idl(RIG, IDL)}) == message_type(RIG, {RIG: MSG})


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
def test_what_is_not_read_is_no_definition(text):
    if found := msg_of_idl(RIG, text):  # a type that the text does not define
        with pytest.raises(RoboCacheError, match="no definition of my_msgs/msg/double__3"):
            message_type(RIG, {RIG: found})


@pytest.mark.timeout(20)  # a scan that begins anew at every character takes half an hour
@pytest.mark.parametrize("part", ["/*", '"\\', '\\"', "//", "@a(", "typedef ", "[", "::", "<"])
def test_a_long_text_of_one_thing_takes_no_time_to_speak_of(part):
    assert msg_of_idl(RIG, part * (300_000 // len(part))) == ""
