"""Validation of robomimic datasets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.validate.array_values import check_finite, check_ticks
from robocache_ros.export.validate.findings import Findings
from robocache_ros.extras import need
from robocache_ros.file_limits import check_hdf5
from robocache_ros.untrusted_files import Hdf5Group, file_below, given_file, open_file, open_hdf5

MAGIC = b"\x89HDF\r\n\x1a\n"
FILE = "dataset.hdf5"  # in a folder
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
        h5py = need("h5py", "hdf5")
        given = file_below(findings.dataset, FILE) if findings.dataset.is_dir() else given_file(findings.dataset)
        with open_hdf5(given, path.name) as file:
            if not isinstance(file.get("data"), Hdf5Group) or not len(file["data"]):
                raise RoboCacheError(f"{path.name}: has no group data with demonstrations")
            _check_members(file)
            if (provenance := file.get("robocache/provenance")) is not None:
                check_hdf5(provenance, "robocache/provenance")
            demos = self._demos(findings, file["data"])
            for name in demos:
                self._check_demo(findings, h5py, file["data"], name)
            self._check_keys(findings, file["data"], demos)
            self._check_attributes(findings, file["data"], demos)
            self._check_masks(findings, file, demos)
        if not findings.decode:
            findings.skip("values of images: --decode reads them")

    def _demos(self, findings: Findings, data: Any) -> list[str]:
        demos = sorted(data, key=lambda name: (len(name), name))
        wanted = [f"demo_{index}" for index in range(len(demos))]
        findings.check(demos == wanted, "data", f"its groups are not demo_0 to demo_{len(demos) - 1}")
        findings.counted["episodes"] += len(demos)
        return [name for name in demos if name.startswith("demo_")]

    def _check_demo(self, findings: Findings, h5py: Any, data: Any, name: str) -> None:
        where = f"data/{name}"
        demo = data[name]
        length = demo.attrs.get("num_samples")
        if not isinstance(length, int | np.integer) or length < 1:
            findings.add(where, f"num_samples is {printable(length, 20)}; it must be a positive integer")
            return
        findings.check("actions" in demo, where, "has no actions")
        findings.check("obs" in demo, where, "has no obs")
        findings.counted["rows"] += int(length)
        for path, array in _arrays(h5py, demo):
            with findings.reading(f"{where}/{path}", ValueError, TypeError):
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
                if path.startswith("next_obs/") and not image and path.removeprefix("next_") in demo:
                    check_hdf5(demo[path.removeprefix("next_")], f"{where}/{path}")
                    same = np.array_equal(values[:-1], demo[path.removeprefix("next_")][1:], equal_nan=True)
                    findings.check(same, f"{where}/{path}", "is not obs of the next row")

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
        told = data.attrs.get("total")
        findings.check(told == total, "data", f"total is {printable(told, 20)}; the demonstrations have {total} rows")
        with findings.reading("data", ValueError, TypeError):
            arguments = json.loads(data.attrs.get("env_args", "null"))
            lacking = [key for key in ("env_name", "type", "env_kwargs") if key not in (arguments or {})]
            findings.check(not lacking, "data", f"env_args has no {', '.join(lacking)}")

    def _check_masks(self, findings: Findings, file: Any, demos: list[str]) -> None:
        masks = file.get("mask")
        if masks is None:
            findings.skip("mask: there is none, so robomimic trains on all demonstrations")
            return
        named: dict[str, set[str]] = {}
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


def _check_members(group: Hdf5Group, depth: int = 0) -> None:
    """Refuse links and data in other files, also where no other check reads: each member is opened."""
    for name in group:
        if isinstance(member := group[name], Hdf5Group) and depth < MAX_DEPTH:
            _check_members(member, depth + 1)


def _arrays(h5py: Any, group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for key in group:
        item = group[key]
        if isinstance(item, h5py.Dataset):
            if item.ndim:
                yield f"{path}{key}", item
        elif path.count("/") < 4:
            yield from _arrays(h5py, item, f"{path}{key}/")


ROBOMIMIC_CHECK = RobomimicCheck()
