"""The YAML that a spec is written in: the core schema of YAML 1.2, within limits."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robocache_ros.spec.strict_yaml import YamlError, load


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *{"1e13": 1e13, "-.5": -0.5, "017": 17, "0o17": 15, "0xff": 255, "+12": 12, "-.inf": -math.inf}.items(),
        *((text, text) for text in ("1:30", "1_000", "2001-12-14", "2001-99-99", "yes", "Off", "0b11")),
        *((text, None) for text in ("NULL", "~", "")),
        *((text, "1") for text in ("'1'", "! 1", "!!str 1")),
        *((text, 7) for text in ("!!int '7'", "!!float 7")),
        ("true", True),
        ("|\n a\n b\n", "a\nb\n"),
        ("{a: &x [1], b: *x}", {"a": [1], "b": [1]}),
        ("a: 1 # comment", {"a": 1}),
    ],
)
def test_scalars_mean_what_the_core_schema_says(text, value):
    assert load(text).value == value
    assert type(load(text).value) is type(value)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a: 1\nb: 2\na: 3", 3, 1, "key 'a' is already given in line 1; remove one of the two"),
        ("a: !!int x", 1, 4, "'x' is not of the type of its tag"),
        ("a: !!timestamp 2001-99-99", 1, 4, "tag tag:yaml.org,2002:timestamp is not part of the core schema"),
        ("a: !!python/name:os.system", 1, 4, "tag tag:yaml.org,2002:python/name:os.system is not part"),
        ("a: !!set {b}", 1, 4, "tag tag:yaml.org,2002:set is not part"),
        ("a: " + "9" * 5000, 1, 4, "a number of 5000 characters"),
        ("[" * 100 + "]" * 100, 1, 33, "nested more than 32 deep"),
        ("a: 1\n---\nb: 1", 2, 1, "a second document"),
        ("1: a", 1, 1, "a key is not text"),
        ("[a]: b", 1, 1, "a key is not text"),
        ("b: &a {c: 1}\nd:\n  <<: *a", 3, 3, "merge key << is not part of YAML 1.2"),
        ("a: *b", 1, 4, "alias *b has no complete anchor before it"),
        ("a: &a [*a]", 1, 8, "alias *a has no complete anchor before it"),
        ("a: [1", 1, 6, "not valid YAML: "),
        ("a:\n\t- b", 2, 1, "not valid YAML: "),
        ("a: \x01", 1, 4, "not valid YAML: character 0x1; remove it"),
        ('a: "\\ud800"', 1, 4, "half a surrogate pair"),
        ('a: "\\UFFFFFFFF"', 1, 4, "not valid YAML: "),
        ("%YAML 1." + "1" * 5000 + "\n---\na: 1", 1, 1, "not valid YAML: "),
    ],
)
def test_what_is_refused_is_named_with_its_line_and_column(text, line, column, message):
    with pytest.raises(YamlError) as refused:
        load(text)
    assert str(refused.value).startswith(message)
    assert "; " in str(refused.value)
    assert refused.value.line == line
    if "valid YAML" not in message:
        assert refused.value.column == column


def test_aliases_that_multiply_are_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 30)]
    with pytest.raises(YamlError, match="more than 20000 values, aliases counted in full; write less"):
        load("\n".join(lines))


def test_a_node_knows_where_its_key_is():
    root = load("a:\n  b: [1, {c: 2}]\n")
    assert (root.at(("a", "b")).line, root.at(("a", "b")).column) == (2, 3)
    assert root.at(("a", "b", 1, "c")).column == 11
    assert root.at(("a", "missing", "deeper")).line == 1


words = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words.filter("<<".__ne__), inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_json_is_read_as_what_it_is(value):
    assert load(json.dumps(value)).value == value
