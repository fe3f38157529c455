"""Small datasets of every format, and the outcome of reading damaged ones."""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from robocache_ros import datasets as readers
from robocache_ros.bags.reader import Bag
from robocache_ros.bags.write import write_bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats import registry
from robocache_ros.formats.validate import validate
from robocache_ros.spec import load_spec
from robocache_ros.spec.dataset import DatasetOptions
from test.datasets.small import write_calvin, write_hdf5, write_lerobot, write_rlds, write_robomimic
from test.exporting import export
from test.fuzz import outcomes
from test.fuzz.outcomes import FAILURES, LINE, Case, cases, counted
from test.fuzz.recordings import DAMAGES, damaged

Opener = Callable[[Path], readers.TimelineDataset]


def _open_robomimic(folder: Path) -> readers.TimelineDataset:
    return readers.RoboMimicDataset(folder / "lift.hdf5", obs_modality="image", mask="train")


_LEROBOT = readers.LeRobotTimelineDataset
# By name: how it is written, how it is opened, and whether checksums cover the values of its episodes.
FORMATS: dict[str, tuple[Callable[[Path], object], Opener, bool]] = {
    "RLDS": (write_rlds, readers.RTXDataset, True),
    "RLDS, gzip": (partial(write_rlds, compressed=True), readers.RTXDataset, True),
    "robomimic": (write_robomimic, _open_robomimic, False),
    "robomimic, gzip": (partial(write_robomimic, compressed=True), _open_robomimic, False),
    "LeRobot v3.0, images": (write_lerobot, _LEROBOT, False),
    "LeRobot v3.0, video": (partial(write_lerobot, media="video"), _LEROBOT, False),
    "LeRobot v2.1, video": (partial(write_lerobot, media="video", version="v2.1"), _LEROBOT, False),
    "CALVIN": (write_calvin, readers.CALVINDataset, True),
}


# Every format that is registered with a writer and a reader is exported, and damaged too. The other readers have a
# dataset above.
ROOT = Path(__file__).parents[2]
WRITTEN = {"rlds", "robomimic", "lerobot", "lerobot21", "calvin", "hdf5"}
EXPORTED = tuple(
    n for n, each in registry.FORMATS.items() if each.write and each.read and (n != "delta" or find_spec("deltalake"))
)


@cache
def _exports() -> tempfile.TemporaryDirectory[str]:
    """A short part of the Panda recording in each of these formats."""
    folder = tempfile.TemporaryDirectory(prefix="robocache-exports-")
    with Bag(ROOT / "test" / "data" / "panda_lift") as complete:
        types = {name: topic.type for name, topic in complete.topics.items()}
        start = complete.start_ns + 10**9
        messages = list(complete.messages(None, start, start + 3 * 10**8))
    bag = write_bag(Path(folder.name) / "bag", types, messages)
    options = DatasetOptions(formats=EXPORTED, task="lift", media="image", split_s=0.1)
    export([bag], load_spec(ROOT / "config" / "panda_lift.yaml"), Path(folder.name) / "out", options)
    return folder


def _copy_export(name: str, folder: Path) -> None:
    shutil.copytree(Path(_exports().name) / "out" / name, folder)


# All that are damaged, as `FORMATS`.
DAMAGED: dict[str, tuple[Callable[[Path], object], Opener, bool]] = {
    **FORMATS,
    "HDF5": (write_hdf5, lambda folder: readers.open_dataset("hdf5", folder / "own.hdf5"), False),
    **{f"export: {n}": (partial(_copy_export, n), partial(readers.open_dataset, n), n == "rlds") for n in EXPORTED},
}


# Damaged datasets: each episode is read as the undamaged one, or refused in one line that names the file.


UNCHECKED = "altered (no checksums)"
GOOD = ("identical", "refused", UNCHECKED)
BAD = ("altered", *FAILURES)
HOW = ("missing", *DAMAGES)


def read(name: str, folder: Path) -> list[str]:
    """The digest of each episode of a dataset; the text of an error where there is none."""
    dataset = DAMAGED[name][1](folder)
    readers.TimelineLoader(dataset, 1)  # refuses an empty dataset
    found = []
    for index in range(len(dataset)):
        try:
            digest = hashlib.sha256()
            for key, value in sorted(dataset[index].items()):
                digest.update(repr((key, value)).encode() if isinstance(value, (str, int)) else value.numpy().tobytes())
            found.append(digest.hexdigest())
        except RoboCacheError as error:
            found.append(f"refused: {error}")
    return found


class Judge(outcomes.Judge):
    """Damages copies of the small datasets in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, 0
        self._files: dict[str, dict[Path, bytes]] = {}
        self.undamaged: dict[str, list[str]] = {}
        for name, (write, _, _) in DAMAGED.items():
            place = self._next()
            write(place)
            paths = sorted(path for path in place.rglob("*") if path.is_file())
            self._files[name] = {path.relative_to(place): path.read_bytes() for path in paths}
            self.undamaged[name] = read(name, place)

    def judge(self, case: Case) -> tuple[str, str]:
        """The outcome of a case: one of GOOD or BAD, and the text that goes with it."""
        place = self._next()
        victim = random.Random(f"{case}").choice(list(self._files[case.kind]))
        for path, data in self._files[case.kind].items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            if path != victim:
                (place / path).write_bytes(data)
            elif case.damage != "missing":
                (place / path).write_bytes(damaged(data, case.damage, case.seed))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                found = read(case.kind, place)
                if case.kind.startswith("export: "):
                    validate(place)
            except RoboCacheError as error:
                found = [f"refused: {error}"]
        stated = [f"warning: {each.message}" for each in warned]
        return self._compared(case, victim, [text.replace(str(place), "") for text in (*found, *stated)])

    def _compared(self, case: Case, victim: Path, found: list[str]) -> tuple[str, str]:
        refusals = [text for text in found if text.startswith(("refused: ", "warning: "))]
        if long := [text for text in refusals if len(text) > LINE + len("refused: ") or not text.isprintable()]:
            return "long error", long[0]
        if found == self.undamaged[case.kind]:
            return "identical", ""
        others = [text for text in found if text not in (*refusals, *self.undamaged[case.kind])]
        stated = any(text.startswith("warning: ") for text in refusals)
        if not refusals or (others and not stated):
            checked = DAMAGED[case.kind][2] and victim.suffix not in (".json", ".npy")
            return ("altered" if checked else UNCHECKED), f"{victim}: {len(found)} episodes"
        return "refused", refusals[0]

    def _next(self) -> Path:
        self._made += 1
        return self._folder / f"d{self._made}"  # a new place, because readers keep what they have opened


def run(count: int) -> dict[str, Any]:
    """Damage `count` datasets and count the outcomes; see `counted`."""
    return counted(Judge, cases(count, DAMAGED, HOW), "format", GOOD, BAD)
