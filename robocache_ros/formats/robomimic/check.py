"""Validation of robomimic datasets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.file_limits import check_hdf5
from robocache_ros.formats.check import ExportedRows, Findings, TickRows, check_finite, check_ticks
from robocache_ros.formats.robomimic.schema import FILE, GROUPS, PROVENANCE
from robocache_ros.formats.schema import TICK_COLUMNS
from robocache_ros.untrusted_files import Hdf5Group, file_below, given_file, open_file, open_hdf5

MAGIC = b"\x89HDF\r\n\x1a\n"
ARRAY_BYTES = 256 << 20  # of an array that is read at once
MAX_DEPTH = 4  # of the groups that are looked into
ACTION_LIMIT = 1 + 1e-6  # of the absolute value; robomimic's policies cannot predict more


class RobomimicCheck:
    """Reads a robomimic HDF5 file."""

    title = "robomimic"

    def recognizes(self, dataset: Path) -> bool:
        """Return whether this is an HDF5 file, or a folder with dataset.hdf5."""
        path = dataset / FILE if dataset.is_dir() else dataset
        if not path.is_file():
            return False
        with open_file(given_file(path)) as file:
            return path.name == FILE or file.read(len(MAGIC)) == MAGIC

    def check(self, findings: Findings) -> None:
        """Report everything that is wrong.

        Errors:
            RoboCacheError: the file cannot be read, or has no data.
        """
        path = findings.dataset / FILE if findings.dataset.is_dir() else findings.dataset
        given = file_below(findings.dataset, FILE) if findings.dataset.is_dir() else given_file(findings.dataset)
        with open_hdf5(given, path.name) as file:
            if not isinstance(file.get("data"), Hdf5Group) or not len(file["data"]):
                raise RoboCacheError(f"{path.name}: has no group data with demonstrations")
            _check_members(file)
            if (provenance := file.get(PROVENANCE)) is not None:
                check_hdf5(provenance, PROVENANCE)
            demos = self._demos(findings, file["data"])
            own = _own_data(findings, file)
            for name in demos:
                self._check_demo(findings, file["data"], name)
                if own is not None and name.removeprefix("demo_").isdigit():
                    with findings.reading(f"data/{name}"):
                        own.check_demo(file["data"][name], f"data/{name}", int(name.removeprefix("demo_")))
            self._check_keys(findings, file["data"], demos)
            self._check_attributes(findings, file["data"], demos)
            named = self._check_masks(findings, file, demos)
            if own is not None:
                with findings.reading("data"):
                    own.check_dataset(named, demos)
        if not findings.decode:
            findings.skip("values of images: --decode reads them")

    def _demos(self, findings: Findings, data: Any) -> list[str]:
        demos = sorted(data, key=lambda name: (len(name), name))
        wanted = [f"demo_{index}" for index in range(len(demos))]
        findings.check(demos == wanted, "data", f"its groups are not demo_0 to demo_{len(demos) - 1}")
        findings.counted["episodes"] += len(demos)
        return [name for name in demos if name.startswith("demo_")]

    def _check_demo(self, findings: Findings, data: Any, name: str) -> None:
        where = f"data/{name}"
        demo = data[name]
        length = demo.attrs.get("num_samples")
        if not isinstance(length, int | np.integer) or length < 1:
            findings.add(where, f"num_samples is {printable(length, 20)}; it must be a positive integer")
            return
        findings.check("actions" in demo, where, "has no actions")
        findings.check("obs" in demo, where, "has no obs")
        findings.counted["rows"] += int(length)
        for path, array in _arrays(demo):
            with findings.reading(f"{where}/{path}"):
                text = f"{array.shape[:1]} rows; num_samples is {length}"
                if not findings.check(array.shape[:1] == (length,), f"{where}/{path}", text):
                    continue
                image = array.ndim == 4
                if image and not findings.decode:
                    continue
                check_hdf5(array, f"{where}/{path}")
                if array.nbytes > ARRAY_BYTES:
                    self._check_large(findings, f"{where}/{path}", array)
                    continue
                values = array[()]
                findings.counted["arrays"] += 1
                check_finite(findings, f"{where}/{path}", values)
                if path == "actions" and values.size and np.isfinite(values).all():
                    most = float(np.abs(values).max())
                    text = f"{most:g} is outside -1 to 1, which robomimic's policies predict"
                    findings.check(most <= ACTION_LIMIT, f"{where}/{path}", text)
                if path == "robocache/tick_ns" and "rate_hz" in data.attrs:
                    check_ticks(findings, f"{where}/{path}", values.reshape(-1), int(data.attrs["rate_hz"]))
                if path.startswith("next_obs/") and path.removeprefix("next_") in demo:
                    obs = demo[path.removeprefix("next_")]
                    check_hdf5(obs, f"{where}/{path}")
                    self._check_next(findings, f"{where}/{path}", values, obs)

    def _check_next(self, findings: Findings, where: str, values: NDArray[Any], obs: Any) -> None:
        """Compare next_obs with obs of the next row."""
        if not findings.check(values.shape == obs.shape, where, f"has the shape {values.shape}; obs has {obs.shape}"):
            return
        found, wanted = values[:-1], obs[1:]
        off = (found != wanted) & ~((found != found) & (wanted != wanted))  # NaN is reported as such
        off = off.reshape(len(off), -1).any(axis=1)
        if off.any():
            text = f"in {int(off.sum())} rows, the first is row {off.argmax()}"
            findings.add(where, f"is not obs of the next row {text}")

    def _check_large(self, findings: Findings, where: str, array: Any) -> None:
        """Read an array in parts of a limited size; check that its numbers are finite."""
        step = ARRAY_BYTES // (array.nbytes // len(array))
        if step == 0:
            findings.skip(f"{where}: a row has more than {ARRAY_BYTES >> 20} MiB")
            return
        for start in range(0, len(array), step):
            check_finite(findings, f"{where}, from row {start}", array[start : start + step])
        findings.counted["arrays"] += 1

    def _check_keys(self, findings: Findings, data: Any, demos: list[str]) -> None:
        """Report observations that some demonstrations lack, or that have several shapes."""
        for group in ("obs", "next_obs"):
            shapes: dict[str, dict[str, Any]] = {}
            having = [name for name in demos if group in data[name]]
            for name in having:
                for key in data[name][group]:
                    array = data[name][group][key]
                    shapes.setdefault(key, {})[name] = (array.shape[1:], str(array.dtype))
            for key, of_demos in shapes.items():
                lacking = [name for name in having if name not in of_demos]
                text = f"is in {next(iter(of_demos))} and not in {', '.join(lacking[:3])}"
                findings.check(not lacking, f"{group}/{key}", text)
                findings.check(
                    len(set(of_demos.values())) == 1, f"{group}/{key}", "has another shape or type in some demos"
                )

    def _check_attributes(self, findings: Findings, data: Any, demos: list[str]) -> None:
        total = sum(int(data[name].attrs.get("num_samples", 0)) for name in demos)
        stated = data.attrs.get("total")
        findings.check(
            stated == total, "data", f"total is {printable(stated, 20)}; the demonstrations have {total} rows"
        )
        with findings.reading("data"):
            arguments = json.loads(data.attrs.get("env_args", "null"))
            lacking = [key for key in ("env_name", "type", "env_kwargs") if key not in (arguments or {})]
            findings.check(not lacking, "data", f"env_args has no {', '.join(lacking)}")

    def _check_masks(self, findings: Findings, file: Any, demos: list[str]) -> dict[str, set[str]]:
        """Return the demonstrations that each mask names; without masks nothing."""
        named: dict[str, set[str]] = {}
        masks = file.get("mask")
        if masks is None:
            findings.skip("mask: there is none, so robomimic trains on all demonstrations")
            return named
        for name in masks:
            stored = masks[name]
            if not findings.check(len(stored) <= len(demos), f"mask/{name}", f"{len(stored):,} names; fewer exist"):
                continue
            check_hdf5(stored, f"mask/{name}")
            named[name] = {bytes(stored[row]).decode("utf-8", "replace") for row in range(len(stored))}
            unknown = named[name] - set(demos)
            findings.check(
                not unknown, f"mask/{name}", f"names {printable(min(unknown, default=''), 30)}, which is missing"
            )
        both = named.get("train", set()) & named.get("valid", set())
        findings.check(not both, "mask", f"{len(both)} demonstrations are in train and in valid")
        return named


class _OwnData:
    """Checks what this package writes besides the arrays that robomimic reads.

    Args:
        data: the group of the demonstrations.
        exported: what the provenance states.
    """

    def __init__(self, findings: Findings, data: Any, exported: ExportedRows) -> None:
        self._findings, self._exported, self._attributes = findings, exported, dict(data.attrs)
        width = sum(stream.width for stream in exported.of_role("action"))
        self._low, self._high = np.full(width, np.inf), np.full(width, -np.inf)  # of the actions

    def check_demo(self, demo: Any, where: str, number: int) -> None:
        """Check a demonstration."""
        if any(a.nbytes > ARRAY_BYTES for path, a in _arrays(demo) if a.ndim < 4 and "next_obs" not in path):
            self._findings.skip(f"{where}: an array has more than {ARRAY_BYTES >> 20} MiB, so arrays are not compared")
            return
        exported, spec = self._exported, self._exported.spec
        if lacking := [name for name in TICK_COLUMNS if f"robocache/{name}" not in demo]:
            self._findings.add(where, f"has no robocache/{lacking[0]}")
            return
        ticks, stamps, valid, ages = (demo[f"robocache/{name}"][()] for name in TICK_COLUMNS)
        values = {}
        for stream in spec.vectors:
            group = GROUPS.get(stream.role)
            if group is None:
                continue
            if f"{group}/{stream.name}" not in demo:
                self._findings.add(where, f"has no {group}/{stream.name}, which is a stream of {PROVENANCE}")
                continue
            array = demo[f"{group}/{stream.name}"]
            text = f"rows of {list(array.shape[1:])}; the stream has {list(stream.shape)}"
            if self._findings.check(array.shape[1:] == stream.shape, f"{where}/{group}/{stream.name}", text):
                values[stream.name] = array[()]
        different = ", ".join(sorted(set(demo["obs"]) ^ set(demo["next_obs"])))
        self._findings.check(not different, where, f"{different}: is in one of obs and next_obs only")
        windows = exported.windows
        ages_ms, masks = (
            {name: demo[f"robocache/{kind}.{name}"][()] for name in windows if f"robocache/{kind}.{name}" in demo}
            for kind in ("sample_age_ms", "mask")
        )
        rows = TickRows(
            ticks.reshape(-1),
            stamps,
            valid,
            ages,
            {name: of_stream for name, of_stream in values.items() if name not in windows},
            ages_ms=ages_ms,
            masks=masks,
            repeated=self._repeated(demo, len(ticks)),
            rewards=demo["rewards"][()],
        )
        if exported.check_episode(where, number, rows):
            self._check_transitions(demo, where, number, rows, values)

    def _check_transitions(
        self, demo: Any, where: str, number: int, rows: TickRows, values: dict[str, NDArray[Any]]
    ) -> None:
        exported = self._exported
        actions = exported.of_role("action")
        if actions and all(stream.name in values for stream in actions):
            table = np.concatenate([values[stream.name] for stream in actions], axis=1).astype(np.float64)
            filled = exported.filled(rows, "action")
            scale, offset = (np.asarray(self._attributes[name]) for name in ("action_scale", "action_offset"))
            if not self._findings.check(bool((scale != 0).all()), "data", "action_scale has a 0"):
                return
            wanted = np.where(filled, np.clip((table - offset) / scale, -1, 1), 0)
            self._low = np.fmin(self._low, np.where(filled, table, np.inf).min(axis=0, initial=np.inf))
            self._high = np.fmax(self._high, np.where(filled, table, -np.inf).max(axis=0, initial=-np.inf))
            self._compare(f"{where}/actions", demo["actions"][()], wanted, "action_dict, scaled, has")
        last = np.arange(len(rows.ticks_ns)) == len(rows.ticks_ns) - 1
        self._compare(f"{where}/dones", demo["dones"][()][:, None], last[:, None], "only the last row has 1, it is")
        for name, array in demo["next_obs"].items() if "next_obs" in demo else ():
            if array.ndim < 4 and name in demo["obs"] and len(array):
                same = np.array_equal(array[-1], demo["obs"][name][-1], equal_nan=True)
                self._findings.check(same, f"{where}/next_obs/{name}", "the last row is not the last one of obs")
        if number < len(exported.episodes):
            task = json.loads(demo.attrs["ep_meta"])["lang"]
            exported.check_value(where, "lang in ep_meta", task, exported.episodes[number].task)

    def _compare(self, where: str, found: NDArray[Any], wanted: NDArray[Any], what: str) -> None:
        text = f"has the shape {list(found.shape)}; it must be {list(wanted.shape)}"
        if self._findings.check(found.shape == wanted.shape, where, text):
            off = ~(np.abs(found.astype(np.float64) - wanted) <= 1e-6)  # actions are float32 from -1 to 1
            if off.any():
                row, column = np.argwhere(off)[0].tolist()
                text = f"wrong in {int(off.any(axis=1).sum())} rows; in row {row} value {column} is"
                self._findings.add(where, f"{text} {found[row, column]:g}; {what} {float(wanted[row, column]):g}")

    def _repeated(self, demo: Any, rows: int) -> dict[str, NDArray[np.bool_]]:
        """Return by stream which images are those of the row before; only with `findings.decode`."""
        found = {}
        for stream in self._exported.spec.media if self._findings.decode else ():
            array = demo["obs"].get(stream.name)
            if array is not None and not isinstance(array, Hdf5Group) and len(array) == rows:
                same, last = np.zeros(rows, np.bool_), None
                for row in range(rows):
                    image = array[row]
                    same[row] = last is not None and np.array_equal(image, last, equal_nan=image.dtype.kind == "f")
                    last = image
                found[stream.name] = same
        return found

    def check_dataset(self, named: dict[str, set[str]], demos: list[str]) -> None:
        """Check what is stored once."""
        exported, attributes = self._exported, self._attributes
        exported.check_count(len(demos), "data")
        exported.check_value("data", "rate_hz", int(attributes["rate_hz"]), exported.spec.rate_hz)
        environment = json.loads(attributes["env_args"])["env_name"]
        exported.check_value("data", "env_name in env_args", environment, exported.robot)
        exported.check_names("streams", json.loads(attributes["streams"]), exported.layout.names, where="data")
        names = json.loads(attributes["action_names"])
        exported.check_names("action_names", names, exported.labels("action"), where="data")
        if len(self._low) and np.isfinite(self._low).all():
            middle = (self._high + self._low) / 2
            off = ~np.isclose(np.asarray(attributes["action_offset"]), middle, rtol=1e-6, atol=1e-9)
            text = f"action_offset of column {off.argmax()} is not the middle of the actions, {middle[off.argmax()]:g}"
            self._findings.check(not off.any(), "data", text)
        if named:
            without = sorted(set(demos) - named.get("train", set()) - named.get("valid", set()))
            text = f"{without[:1]} is in neither train nor valid"
            self._findings.check(not without or "train" not in named, "mask", text)
            tasks = exported.tasks
            for index, task in enumerate(tasks if len(tasks) > 1 else ()):
                wanted = {f"demo_{k}" for k, episode in enumerate(exported.episodes) if episode.task == task}
                off_names = sorted(wanted ^ named.get(f"task_{index}", set()))
                text = f"{off_names[:1]} is wrong in it or missing; it has the episodes of {printable(task, 40)}"
                self._findings.check(not off_names, f"mask/task_{index}", text)


def _own_data(findings: Findings, file: Any) -> _OwnData | None:
    """Return the checks of a file that this package wrote; None for others."""
    own = any("robocache" in demo for _, demo in file["data"].items() if isinstance(demo, Hdf5Group))
    provenance = file.get(PROVENANCE)
    if provenance is None:
        findings.check(not own, PROVENANCE, "is missing; without it readers do not know the streams")
        return None
    with findings.reading(PROVENANCE):
        raw = json.loads(bytes(provenance[()]))
        return _OwnData(findings, file["data"], ExportedRows(findings, PROVENANCE, raw))
    return None


def _check_members(group: Hdf5Group, depth: int = 0) -> None:
    """Refuse links and data in other files, also where no other check reads: each member is opened."""
    for name in group:
        if isinstance(member := group[name], Hdf5Group) and depth < MAX_DEPTH:
            _check_members(member, depth + 1)


def _arrays(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for key in group:
        item = group[key]
        if not isinstance(item, Hdf5Group):
            if item.ndim:
                yield f"{path}{key}", item
        elif path.count("/") < MAX_DEPTH:
            yield from _arrays(item, f"{path}{key}/")


ROBOMIMIC_CHECK = RobomimicCheck()
