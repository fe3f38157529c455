"""The columns that this package adds to LeRobot datasets: ticks, stamps and validity of the streams."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robocache_ros.errors import RoboCacheError
from robocache_ros.export.validate.column_statistics import compare
from robocache_ros.export.validate.exported_rows import ExportedRows, TickRows
from robocache_ros.export.validate.findings import Findings, file_in, read_json
from robocache_ros.export.validate.lerobot.info_file import INFO, OWN, Info
from robocache_ros.extras import need
from robocache_ros.file_limits import open_table

STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
TICK, STAMP, VALID, AGE = "robocache.tick_ns", "robocache.stamp_ns", "robocache.valid", "robocache.age_ns"
WINDOW, MASK, SAMPLE_AGE = "observation.window.", "robocache.mask.", "robocache.sample_age_ms."
REWARD, DONE, SUCCESS = "next.reward", "next.done", "next.success"
NORM_STATS = "meta/openpi/norm_stats.json"
OPENPI_STATS = ("mean", "std", "q01", "q99")
OPENPI_KEYS = {"state": STATE, "actions": ACTION}


class OwnColumns:
    """Checks the columns of a dataset that this package wrote. Does nothing for others.

    Args:
        findings: collects what is wrong.
        info: of the dataset.

    Attributes:
        exported: what the provenance states; None without one.
    """

    def __init__(self, findings: Findings, info: Info) -> None:
        self._findings, self._info = findings, info
        self.exported: ExportedRows | None = None
        self._last: TickRows | None = None  # of the last episode
        if info.own:
            with findings.reading(OWN):
                raw = read_json(findings.dataset, OWN)
                self.exported = ExportedRows(findings, OWN, raw)
                self._check_info(self.exported, raw)
        elif any(key.startswith("robocache.") for key in info.features):
            findings.add(OWN, "is missing; without it readers do not know the streams and their stamps")

    def _check_info(self, exported: ExportedRows, raw: dict[str, Any]) -> None:
        """Compare info.json with the spec."""
        info, names = self._info, list(exported.layout.names)
        exported.check_value(INFO, "fps", info.raw["fps"], exported.spec.rate_hz)
        exported.check_value(INFO, "robot_type", info.raw.get("robot_type"), exported.robot)
        wanted = dict.fromkeys((STAMP, VALID, AGE), names)
        wanted |= {STATE: exported.labels("observation"), ACTION: exported.labels("action")}
        wanted |= {WINDOW + s.name: list(s.components) for s in exported.spec.vectors if s.rows}
        for key, of_key in wanted.items():
            if key in info.features:
                exported.check_names(f"features.{key}", info.features[key].names, of_key, where=INFO)
            elif of_key:
                self._findings.add(INFO, f"features has no {key}; {OWN} has streams of it")
        images = raw.get("images")
        for stream, told in (images if isinstance(images, dict) else {}).items():
            stored = str((told if isinstance(told, dict) else {}).get("stored"))
            if stored == "not stored" or stored.startswith("arrays"):
                continue
            self._findings.check(IMAGES + stream in info.features, INFO, f"features has no {IMAGES}{stream}")
            size = exported.spec.stream(stream).image
            found = info.features[IMAGES + stream].size if IMAGES + stream in info.features else None
            if size and size.size and found:
                exported.check_value(INFO, f"features.{IMAGES}{stream}: its size", list(found), list(size.size))

    def check(self, where: str, values: dict[str, NDArray[Any]], episode: int) -> dict[str, NDArray[Any]]:
        """Check the columns of an episode; return by feature its values with NaN where they are missing."""
        if TICK in values and (VALID not in values or values[VALID].ndim != 2):
            self._findings.add(where, f"has no {VALID} of (rows, streams): it cannot be loaded")
            return {}
        if TICK in values and (AGE not in values or values[AGE].shape != values[VALID].shape):
            self._findings.add(where, f"{AGE} does not have the shape of {VALID}: it cannot be loaded")
            return {}
        missing = {}
        for key, mask in ((WINDOW + key.removeprefix(MASK), mask) for key, mask in values.items() if MASK in key):
            if key in values and values[key].shape[:2] == mask.shape:
                padding = np.broadcast_to(mask[:, :, None] == 0, values[key].shape)
                zero = not values[key][padding].any()
                self._findings.check(zero, where, f"{key}: values are not 0 where there is no sample")
                missing[key] = np.where(padding, np.float32(np.nan), values[key])
        rows = self._last = self._rows(values)
        if rows is None or self.exported is None:
            return missing
        self.exported.check_episode(where, episode, rows)
        if rows.valid.shape != (len(rows.ticks_ns), len(self.exported.layout.names)):
            return missing
        for key, role in ((STATE, "observation"), (ACTION, "action")):
            if key in values:
                filled = self.exported.filled(rows, role)
                if filled.shape == values[key].shape:
                    missing[key] = np.where(filled, values[key], np.float32(np.nan))
        self._check_windows(where, values, rows)
        self._check_outcomes(where, values, rows, episode)
        return missing

    def _rows(self, values: dict[str, NDArray[Any]]) -> TickRows | None:
        if self.exported is None or not {TICK, STAMP, VALID, AGE} <= set(values):
            return None
        tables = [values[key].reshape(len(values[key]), -1) for key in (STAMP, VALID, AGE)]
        parts = {
            **self.exported.parts("observation", values.get(STATE)),
            **self.exported.parts("action", values.get(ACTION)),
        }
        return TickRows(values[TICK].reshape(-1), tables[0], tables[1], tables[2], parts)

    def _check_windows(self, where: str, values: dict[str, NDArray[Any]], rows: TickRows) -> None:
        assert self.exported is not None
        for stream in self.exported.spec.vectors:
            ages, mask = values.get(SAMPLE_AGE + stream.name), values.get(MASK + stream.name)
            if not stream.rows or ages is None or mask is None:
                continue
            ages, mask = ages.reshape(len(ages), -1), mask.reshape(len(mask), -1)
            self.exported.check_window(where, rows, stream, ages)
            off = ((ages >= 0) != (mask != 0)).any(axis=1)
            text = f"{MASK}{stream.name}: is not where {SAMPLE_AGE}{stream.name} is 0 or more, in row {off.argmax()}"
            self._findings.check(not off.any(), where, text)

    def _check_outcomes(self, where: str, values: dict[str, NDArray[Any]], rows: TickRows, episode: int) -> None:
        assert self.exported is not None
        if REWARD in values:
            self.exported.check_rewards(where, episode, rows, values[REWARD])
        if DONE in values:
            done = values[DONE].reshape(-1).astype(bool)
            off = done != (np.arange(len(done)) == len(done) - 1)
            text = f"{DONE} is {done[off.argmax()]} in row {off.argmax()}; it is true in the last row only"
            self._findings.check(not off.any(), where, text)
        if SUCCESS in values and episode < len(self.exported.episodes) and len(values[SUCCESS]):
            found, told = values[SUCCESS].reshape(-1).astype(bool), self.exported.episodes[episode]
            self.exported.check_value(where, f"{SUCCESS} of the last row", bool(found[-1]), bool(told.success))
            if not self.exported.of_role("success"):
                text = f"{SUCCESS} is true in row {found[:-1].argmax()}; it can be in the last row only"
                self._findings.check(not found[:-1].any(), where, text)

    def check_repeated(self, where: str, key: str, same: NDArray[np.bool_]) -> None:
        """Check the images of the last episode, given in which rows (T,) they are those of the row before."""
        stream = key.removeprefix(IMAGES)
        exported, rows = self.exported, self._last
        if exported is None or rows is None or stream not in exported.layout.names:
            return
        if rows.valid.shape == (len(same), len(exported.layout.names)):
            exported.check_media(where, rows, exported.spec.stream(stream), same)

    def check_task(self, where: str, episode: int, task: Any) -> None:
        """Check the task of an episode."""
        if self.exported is not None and episode < len(self.exported.episodes):
            self.exported.check_value(where, "its task", task, self.exported.episodes[episode].task)


def check_norm_stats(findings: Findings, info: Info, statistics: dict[str, Any]) -> None:
    """Compare the statistics for openpi with the values. Those of actions may be of chunks of them."""
    if not (info.own and (findings.dataset / NORM_STATS).is_file()):
        return
    with findings.reading(NORM_STATS, KeyError, TypeError):
        told = read_json(findings.dataset, NORM_STATS)["norm_stats"]
        for name, key in OPENPI_KEYS.items():
            where = f"{NORM_STATS}: {name}"
            if name not in told:
                findings.add(where, "is missing")
            elif key == STATE and key in statistics:
                compare(findings, where, told[name], statistics[key], exact=True, required=OPENPI_STATS)
    findings.skip(f"actions in {NORM_STATS}: they may be of chunks of actions")


def check_arrays(
    findings: Findings,
    exported: ExportedRows | None,
    starts: list[int],
    stamps_ns: NDArray[np.int64] | None,
) -> None:
    """Compare the depth images and voxels in arrays/ with the rows.

    Args:
        findings: collects what is wrong.
        exported: what the provenance states.
        starts: the first row of each episode, and the number of all rows.
        stamps_ns: (rows, N) of all episodes, 0 without a value.
    """
    if exported is None or stamps_ns is None:
        return
    raw = read_json(findings.dataset, OWN).get("arrays")
    listed = raw if isinstance(raw, dict) else {}
    for stream, told in listed.items():
        where = f"arrays/{stream}"
        with findings.reading(where, KeyError, TypeError, ValueError, need("pyarrow", "export").ArrowException):
            if stream not in exported.layout.names:
                raise RoboCacheError(f"{where}: is not a stream of {OWN}")
            of_stream = np.array(stamps_ns[:, exported.layout.names.index(stream)])
            used = _check_array_files(findings, stream, told, starts, of_stream)
            lacking = np.flatnonzero((of_stream != 0) & ~used)
            if len(lacking):
                episode = int(np.searchsorted(starts, lacking[0], "right")) - 1
                text = f"{len(lacking)} rows have no array, the first is row {lacking[0] - starts[episode]}"
                findings.add(where, f"{text} of episode {episode}")
    for path in sorted((findings.dataset / "arrays").glob("*")):
        findings.check(path.name in listed, f"arrays/{path.name}", f"is not in arrays of {OWN}")


def _check_array_files(
    findings: Findings, stream: str, told: dict[str, Any], starts: list[int], stamps_ns: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Check the files of a stream; return (rows,) which rows have an array."""
    used = np.zeros(len(stamps_ns), np.bool_)
    size = int(np.prod(told["shape"], dtype=np.int64))
    size = -(-size // 8) if told["dtype"] == "bits" else size * np.dtype(told["dtype"]).itemsize
    last = 0
    for path in sorted((findings.dataset / "arrays" / stream).glob("*/*.parquet")):
        name = path.relative_to(findings.dataset).as_posix()
        with open_table(file_in(findings.dataset, name), name) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                of_row = (table[key].to_pylist() for key in ("episode_index", "frame_from", "frame_to", "stamp_ns"))
                for row, (episode, start, stop, stamp) in enumerate(zip(*of_row, strict=True)):
                    where = f"{name}, episode {episode}, rows {start} to {stop}"
                    known = isinstance(episode, int) and 0 <= episode < len(starts) - 1
                    inside = known and 0 <= start < stop <= starts[episode + 1] - starts[episode]
                    if not findings.check(inside, where, "are not rows of the episode"):
                        continue
                    rows = slice(starts[episode] + start, starts[episode] + stop)
                    findings.check(rows.start >= last, where, "belong to another array too, or are not in order")
                    last, used[rows] = rows.stop, True
                    off = stamps_ns[rows] != stamp
                    text = f"its stamp is {stamp}; row {start + off.argmax()} has {stamps_ns[rows][off.argmax()]}"
                    findings.check(not off.any(), where, text)
                    if "data" in table.column_names:
                        data = table["data"][row].as_py()
                        text = f"{len(data or b'')} bytes; the shape has {size}"
                        findings.check(data is not None and len(data) == size, where, text)
                    findings.counted["arrays"] += 1
    return used
