"""Damaged fusion specs: each is accepted, or refused with one line for each mistake."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from robocache_ros.errors import RoboCacheError
from robocache_ros.resources import resource
from robocache_ros.spec import load_spec

SLOW_S = 10.0  # of processor time
LINE_CHARACTERS = 200

# Replacements of a value: other types, types of other YAML versions, bounds, and values that cost time or memory.
SCALARS: tuple[str, ...] = (
    *("", "~", "null", "true", "yes", "No", "on", "off", "1:30", "190:20:30", "1e13", "1e400", "-1e400", ".nan"),
    "-.inf",
    *("0", "-0.0", "017", "0o17", "0xFF", "1_000", "2001-12-14", "2001-99-99", "2001-12-14t21:59:43.10-05:00", "="),
    *("!!int x", "!!float y", "!!timestamp 2001-99-99", "!!binary '===='", "!!set {a}", "!!omap [a]", "!!null x", "<<"),
    *("!!python/object/apply:os.system [true]", "!local x", "!<tag:x> y", "!!str", "!!bool 2", "*missing", "&a [*a]"),
    *("'/a\\n'", '"/a\\nb"', '"\\0"', '"\\x1b[31m"', '"\\ud800"', '"\\UFFFFFFFF"', '"\\x"', "'", '"', "|", ">-2", "@a"),
    *("`a`", "%a", "&a &b c", "[1, 2", "{a: 1", "}", "]", "{a: 1, a: 2}", "{[a]: b}", "{? a}", "? a", "- a", "a: b: c"),
    *("9" * 5000, "-" + "9" * 400, "0x" + "f" * 5000, "1" + "0" * 400 + ".5", "a" * 70_000, "'" + "é" * 5000 + "'"),
    *("[" * 5000, "[" * 2000 + "]" * 2000, "{a: " * 1500, "- " * 3000, "? " * 3000, "[" + "1," * 30_000 + "]", "\t"),
    *("[" + "{}," * 9000 + "]", "[1, 1]", "[a, a]", "{}", "[]", "[[]]", "{mean: [0], std: [1, 2]}"),
    "{size: [0, 70000]}",
    *("/a//b", "/ä", "a/msg/B", "\u202e"),
)
KEYS = [
    *["robocache", "streams", "rate_hz", "align", "topic", "qos", "image", "voxels", "dim", "streamz"],
    "a" * 300,
    "1",
    "~",
]
LAUGHS = "\n".join(
    [f"l0: &l0 [{', '.join(['x'] * 10)}]"] + [f"l{k}: &l{k} [{', '.join([f'*l{k - 1}'] * 10)}]" for k in range(1, 40)]
)


def run(count: int, seed: int = 0) -> dict[str, Any]:
    """Load `count` damaged specs and report what happened.

    Returns:
        `specs`, `accepted` and `refused` as counts, `slowest_s`, and `failures`: for each spec that raised anything but
        RoboCacheError, took longer than SLOW_S, gave a malformed line, or did not read back the same once accepted, its
        number and the reason.
    """
    rng = random.Random(seed)
    base = resource("config", "panda_lift.yaml").read_text(encoding="utf-8")
    report: dict[str, Any] = {"specs": count, "accepted": 0, "refused": 0, "slowest_s": 0.0, "failures": []}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "spec.yaml"
        for number in range(count):
            path.write_bytes(damaged(base, rng))
            started = time.process_time()
            accepted, failure = attempt(path)
            took_s = time.process_time() - started
            report["slowest_s"] = max(report["slowest_s"], took_s)
            report["accepted" if accepted else "refused"] += 1
            if failure or took_s > SLOW_S:
                report["failures"].append((number, failure or f"took {took_s:.1f} s"))
    return report


def attempt(path: Path) -> tuple[bool, str]:
    """Load one spec: whether it was accepted, and what is wrong with the outcome, if anything."""
    try:
        spec = load_spec(path)
    except RoboCacheError as error:
        wrong = next((line for line in str(error).splitlines() or [""] if not well_formed(line)), None)
        return False, "" if wrong is None else f"malformed line: {wrong!r}"
    except Exception:
        return False, traceback.format_exc(limit=-3)
    return True, "" if load_spec(spec.to_dict()) == spec else "does not read back the same"


def well_formed(line: str) -> bool:
    """Whether a line reads `<where>: <what is wrong>; <what to do>` and is short and printable."""
    where, _, text = line.partition(": ")
    what, _, hint = text.rpartition("; ")
    return bool(where and what and hint) and len(line) < LINE_CHARACTERS and line.isprintable()


def damaged(base: str, rng: random.Random) -> bytes:
    """A copy of a spec with one to three kinds of damage."""
    text = base
    for _ in range(rng.choice((1, 1, 2, 3))):
        text = rng.choice(DAMAGES)(text, rng)
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    if rng.random() < 0.2:
        for _ in range(rng.choice((1, 2, 8, 64))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _value(text: str, rng: random.Random) -> str:
    """Replace the value after a colon."""
    places = [at for at, (a, b) in enumerate(pairwise(text)) if a == ":" and b in " \n"]
    if not places:
        return rng.choice(SCALARS)
    start = rng.choice(places) + 1
    stop = min((at for c in ",}\n" if (at := text.find(c, start + 1)) > 0), default=len(text))
    return f"{text[:start]} {rng.choice(SCALARS)}{text[stop:]}"


def _key(text: str, rng: random.Random) -> str:
    """Replace a key by another one, or give it twice."""
    lines = text.splitlines()
    row = rng.randrange(len(lines))
    indent = len(lines[row]) - len(lines[row].lstrip())
    _, colon, rest = lines[row].partition(":")
    if rng.random() < 0.5 and colon:
        lines[row] = " " * indent + rng.choice(KEYS) + colon + rest
    else:
        lines.insert(row, lines[row])
    return "\n".join(lines)


def _cut(text: str, rng: random.Random) -> str:
    """Cut the text off, or a piece out of it."""
    start = rng.randrange(len(text))
    return text[:start] + (text[start + rng.randrange(1, 200) :] if rng.random() < 0.5 else "")


def _insert(text: str, rng: random.Random) -> str:
    """Insert something anywhere."""
    at = rng.randrange(len(text))
    return text[:at] + rng.choice((*SCALARS, LAUGHS, "\n", "  ", "\x00", "\x85", "\u2028", "\ufeff", "\r")) + text[at:]


def _structure(_text: str, rng: random.Random) -> str:
    """Replace a value of the undamaged spec by one of another type."""
    tree = at = yaml.safe_load(resource("config", "panda_lift.yaml").read_text(encoding="utf-8"))
    nodes = []
    while isinstance(at, (dict, list)) and at:
        nodes.append((at, rng.choice(list(at) if isinstance(at, dict) else range(len(at)))))
        at = at[nodes[-1][1]]
    container, name = rng.choice(nodes)
    others: tuple[Any, ...] = (None, True, -1, 0, 10**30, 1e300, "", "x" * 1000, "/a\n", [], {}, [[1]])
    container[name] = rng.choice((*others, {"a": {"b": [{}]}}))
    return str(yaml.safe_dump(tree, sort_keys=False))


def _many(text: str, rng: random.Random) -> str:
    """Add a very large number of streams, keys or aliases."""
    streams = "".join(f"  s{k}: {{topic: /t{k}, type: a/msg/B}}\n" for k in range(rng.choice((10, 3000))))
    return rng.choice((f"{text}\n{LAUGHS}", f"{LAUGHS}\n{text}", f"{text}\n{streams}", "k: 1\n" * 30_000, text * 40))


DAMAGES: tuple[Callable[[str, random.Random], str], ...] = (*(_value,) * 3, _key, _cut, _insert, _structure, _many)
