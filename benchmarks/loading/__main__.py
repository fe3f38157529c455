"""Measures the loader beside the loaders that others use, on two cores in about five minutes.

    python -m benchmarks.loading [--robomimic PYTHON] [--lerobot PYTHON] [--tensorflow PYTHON]

robomimic        low-dimensional windows, batches of 100, beside robomimic 0.3.0
rlds             episodes of 100 steps with jpeg images of 256x256, beside tf.data
rlds_small       the same, resized to 128x128
lerobot          windows with two cameras of 224x224 as AV1 video, in random order, beside lerobot 0.4.4
lerobot_numbers  the same without images

The data is synthetic. A peer is left out unless its Python is given, or named by ROBOCACHE_ROBOMIMIC_PYTHON,
ROBOCACHE_LEROBOT_PYTHON, ROBOCACHE_TENSORFLOW_PYTHON: an environment with `pip install robomimic==0.3.0`,
`lerobot==0.4.4 torchcodec`, `tensorflow-cpu`. Needs 600 MB in the temporary folder. Writes loading.json and loading.md.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.loading import datasets
from benchmarks.report import argument_parser, json_of, machine, middle, tell, write_results

BOUND, NESTED = "bound: ", "nested loop"


def summary(rounds: Sequence[Mapping[str, float]], wanted: Mapping[str, float]) -> dict[str, Any]:
    """The medians by form, and how our best form compares with the peers'.

    Args:
        rounds: by form the rate of each round.
        wanted: by kind of peer (`peer`, `nested loop`) the ratio that is wanted.
    """
    rates = {name: middle([each[name] for each in rounds]) for name in rounds[0]}
    ours = {name: rate for name, rate in rates.items() if name.startswith("ours")}
    best = max(ours, key=lambda name: ours[name])
    found: dict[str, Any] = {"rates": rates, "best": best}
    for kind, ratio in wanted.items():
        peers = [name for name in rates if _is_peer(name, kind)]
        if peers:
            peer = max(peers, key=lambda name: rates[name])
            times = middle([each[best] / each[peer] for each in rounds])
            found[kind] = {"best": peer, "times": times, "wanted": ratio}
    return found


def as_markdown(result: Mapping[str, Any]) -> str:
    """The result as text: a table for each dataset."""
    lines = [
        "# Batches of public datasets",
        "",
        "`python -m benchmarks.loading`. Each form in a process of its own, in turn; medians of the rounds, ratios of "
        "the best forms within a round. Each was measured after its first batch.",
    ]
    for case in result["cases"].values():
        on = case["machine"]
        measured = (
            f"{on['cores']} cores of an {on['cpu']}, Python {on['python']}, {on['date']}, load before "
            f"{on['load_before']}, {case['rounds']} rounds."
        )
        lines += ["", f"## {case['title']}", "", case["note"], "", measured]
        lines += ["", f"| form | {case['unit']} |", "|---|---:|"]
        lines += [f"| {name} | {rate:,.0f} |" for name, rate in case["rates"].items()]
        for kind in ("peer", NESTED):
            if kind in case:
                compared = case[kind]
                lines += [
                    "",
                    f"{case['best']}: {compared['times']:g} times {compared['best']} (wanted: {compared['wanted']:g}).",
                ]
    return "\n".join([*lines, ""])


def _is_peer(name: str, kind: str) -> bool:
    return not name.startswith(("ours", BOUND)) and (name == NESTED) == (kind == NESTED)


SCRIPTS = Path(__file__).parent
WORKERS = 2
KEYS = list(datasets.OBSERVATIONS)


class Case(NamedTuple):
    """A dataset and its peer."""

    title: str
    note: str
    unit: str
    peer: str  # option with its Python
    arguments: list[dict[str, Any]]  # of each run of the peer
    wanted: dict[str, float]


_SAMPLES = {"samples": 640}
CASES = {
    "robomimic": Case(
        "robomimic, low-dimensional",
        "200 demonstrations, windows of one tick, batches of 100.",
        "batches/s",
        "robomimic",
        [{"keys": KEYS, "workers": workers} for workers in (0, 1, 2)],
        {"peer": 20},
    ),
    "rlds": Case(
        "RLDS with jpeg images",
        "Episodes of 100 steps with one image of 256x256, decoded to the bits of libjpeg's accurate transform.",
        "episodes/s",
        "tensorflow",
        [{"steps": datasets.RLDS_STEPS}],
        {"peer": 1.3, NESTED: 3},
    ),
    "rlds_small": Case(
        "RLDS with jpeg images, resized",
        "The same episodes with images of 128x128: `image_resize` area, or reduced, which decodes at half the size. "
        "tf.data with `tf.image.resize(method='area')`, or `decode_jpeg(ratio=2)`. Ours without workers.",
        "episodes per second of the processor",
        "tensorflow",
        [{"steps": datasets.RLDS_STEPS, "size": 128}],
        {"peer": 1.3},
    ),
    "lerobot": Case(
        "LeRobot with two cameras",
        "Windows with one image of each camera, 224x224, and 16 actions, batches of 32 in random order.",
        "samples/s",
        "lerobot",
        [{"cameras": True, "workers": workers, **_SAMPLES} for workers in (1, 2)],
        {"peer": 3},
    ),
    "lerobot_numbers": Case(
        "LeRobot without cameras",
        "The same windows without images.",
        "samples/s",
        "lerobot",
        [{"cameras": False, "workers": workers, **_SAMPLES} for workers in (0, 1, 2)],
        {"peer": 10},
    ),
}
PEERS = ("robomimic", "lerobot", "tensorflow")


def main() -> None:
    """Measure and write the result."""
    parser = argument_parser(__doc__)
    for peer in PEERS:
        default = os.environ.get(f"ROBOCACHE_{peer.upper()}_PYTHON")
        parser.add_argument(f"--{peer}", default=default, help=f"Python that has {peer}.")
    parser.add_argument("--case", action="append", choices=tuple(CASES), help="Measure it again; default: all.")
    parser.add_argument("--rounds", type=int, default=3, help="Runs of each form.")
    given = parser.parse_args()
    pythons = {peer: getattr(given, peer) for peer in PEERS}
    on, before = machine(), given.out / "loading.json"
    others = json.loads(before.read_text())["cases"] if given.case and before.exists() else {}
    result: dict[str, Any] = {"cases": others}
    with tempfile.TemporaryDirectory(prefix="robocache-bench-") as folder:
        chosen = given.case or list(CASES)
        tell("the datasets are written")
        paths = _write(Path(folder), chosen)
        for name in chosen:
            case = CASES[name]
            tell(name)
            rounds = [_round(name, paths[name], pythons[case.peer]) for _ in range(given.rounds)]
            about: dict[str, Any] = {"title": case.title, "note": case.note, "unit": case.unit}
            about |= {"machine": on, "rounds": given.rounds}
            result["cases"][name] = {**about, **summary(rounds, case.wanted)}
            write_results(given.out, "loading", result, as_markdown(result))
    print(as_markdown(result))


def _write(folder: Path, cases: list[str]) -> dict[str, Path]:
    paths = {}
    if "robomimic" in cases:
        paths["robomimic"] = datasets.robomimic(folder / "lift.hdf5")
    if {"rlds", "rlds_small"} & set(cases):
        paths["rlds"] = paths["rlds_small"] = datasets.rlds(folder / "rlds")
    if {"lerobot", "lerobot_numbers"} & set(cases):
        paths["lerobot"] = paths["lerobot_numbers"] = datasets.lerobot(folder / "lerobot")
    return paths


def _round(name: str, path: Path, python: str | None) -> dict[str, float]:
    """Run every form once: ours, then those of the peer."""
    ours = {"case": name, "path": str(path), "keys": KEYS, "workers": WORKERS}
    found: dict[str, float] = json_of(sys.executable, "benchmarks.loading.run_loader", json.dumps(ours))
    if python:
        peer = CASES[name].peer
        for arguments in CASES[name].arguments:
            found |= json_of(python, SCRIPTS / f"peer_{peer}.py", json.dumps({"path": str(path), **arguments}))
    return found


if __name__ == "__main__":
    main()
