"""The plans of a target in a bucket: which export makes its dataset.

<out>/.robocache/plans/<n>.json      the plan of an export, put if absent; that with the highest number counts
                      /<n>.files     put if absent before the first file of the dataset: its files with their SHA-256
                      /<n>.stopped   the export has ended without a dataset; another plan may follow
                /files/<token>/      files that tasks on other machines have written, under their names in the dataset
                /complete.json       the plan of the dataset that is there

A plan is named by a hash of what the dataset consists of. Exports of the same plan work together. Nothing is locked,
so a killed export leaves its plan; the same command continues it.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.publish import is_entry
from robocache_ros.remote.object_store import ObjectStore

HIDDEN = ".robocache"
PLANS, COMPLETE = "plans/", "complete.json"
_PLAN = re.compile(r"([0-9]{6,12})\.json")
_TOKEN = re.compile(r"[0-9a-f]{16}")  # of `secrets.token_hex`; it is the name of a folder
_TRIES = 8
_GIVE_UP = "run robocache fleet gc --give-up on it"


@dataclass(frozen=True)
class TargetPlan:
    """The plan of an export to a bucket.

    Attributes:
        digest: of what the dataset consists of.
        token: of this export; exports that join it share it.
        pieces: number of pieces that it needs.
        started: time, ISO 8601 in UTC.
        replaces: names directly in the target, of the files of an earlier dataset or of a stopped export.
        number: of the plan, from 1.
        stopped: whether its export has ended without a dataset.
    """

    digest: str
    token: str
    pieces: int
    started: str
    replaces: tuple[str, ...] = ()
    number: int = 0
    stopped: bool = False


class TargetPlans:
    """The plans in the hidden folder of a target.

    Args:
        target: the objects of the target.

    Errors:
        StoreError: of all methods: the bucket cannot be used.
    """

    def __init__(self, target: ObjectStore) -> None:
        self._target, self._hidden = target, target.below(HIDDEN)

    def current(self) -> TargetPlan | None:
        """Return the plan that counts, None if there is none."""
        names = self._hidden.listed(PLANS)
        numbers = [int(found[1]) for found in map(_PLAN.fullmatch, names) if found]
        for number in sorted(numbers, reverse=True)[:1]:
            with suppress(FileNotFoundError):  # completed in between
                name = f"{PLANS}{number:06d}.json"
                told = self._read(name)
                try:
                    plan = _plan(told)
                except ValueError as error:
                    raise self._foreign(name) from error
                return replace(plan, number=number, stopped=f"{number:06d}.stopped" in names)
        return None

    def completed(self) -> dict[str, Any]:
        """Return the record of the complete dataset, empty if there is none."""
        with suppress(FileNotFoundError):
            told = self._read(COMPLETE)
            if not isinstance(told.get("entries", []), list):
                raise self._foreign(COMPLETE)
            return told
        return {}

    def is_done(self, plan: TargetPlan) -> bool:
        """Whether an export of a plan has completed the dataset."""
        with suppress(RoboCacheError):
            return self.completed().get("token") == plan.token
        return False

    def begin(self, digest: str, pieces: int, replaced: Callable[[TargetPlan | None], Iterable[str]]) -> TargetPlan:
        """Add a plan, or join the same one.

        Args:
            digest: of what the dataset consists of.
            pieces: number of pieces that it needs.
            replaced: returns the names of the files that it replaces, given the plan that counts, or refuses them.

        Errors:
            RoboCacheError: another plan counts.
        """
        for _ in range(_TRIES):
            current = self.current()
            replaces = tuple(sorted(replaced(current)))
            if current and not current.stopped:
                if current.digest != digest:
                    raise self._taken(current)
                return current
            number = current.number + 1 if current else 1
            started = datetime.now(timezone.utc).isoformat(timespec="seconds")
            plan = TargetPlan(digest, secrets.token_hex(8), pieces, started, replaces, number)
            if self._hidden.create(f"{PLANS}{number:06d}.json", _json(asdict(plan))):
                return plan
        raise RoboCacheError(f"{printable(self._target.url, 60)}: many exports are started to it; start one")

    def stop(self, plan: TargetPlan) -> None:
        """Note that the export of a plan has ended, or is given up."""
        self._hidden.put(f"{PLANS}{plan.number:06d}.stopped", b"1")

    def files(self, plan: TargetPlan) -> dict[str, Any]:
        """Return the files that exports of a plan put into the target; empty if none has begun to."""
        name = f"{PLANS}{plan.number:06d}.files"
        with suppress(FileNotFoundError):
            files = self._read(name)
            if not all(is_entry(file.partition("/")[0]) for file in files):
                raise self._foreign(name)
            return files
        return {}

    def staging(self, plan: TargetPlan) -> ObjectStore:
        """Return the objects of files that are not in the target yet, which `clear` removes."""
        return self._hidden.below(f"files/{plan.token}")

    def record_files(self, plan: TargetPlan, files: Mapping[str, str]) -> None:
        """Record the files of the dataset, by name with their SHA-256, before the first one is put.

        Errors:
            RoboCacheError: another export of the plan has other files, or another plan counts.
        """
        self.check(plan)
        if not self._hidden.create(f"{PLANS}{plan.number:06d}.files", _json(dict(sorted(files.items())))):
            raise RoboCacheError(
                f"{printable(self._target.url, 60)}: another export of this plan has other results: recordings have "
                f"changed or failed meanwhile; if none runs, {_GIVE_UP}"
            )

    def check(self, plan: TargetPlan, *, or_done: bool = False) -> None:
        """Refuse to go on if another plan counts by now.

        Args:
            plan: of the export.
            or_done: go on if another export of the plan has completed the dataset, and no plan counts.
        """
        current = self.current()
        if current is None and or_done and self.is_done(plan):
            return
        if current is None or current.token != plan.token:
            where = printable(self._target.url, 60)
            raise RoboCacheError(f"{where}: another export has taken the place of this one; choose another folder")

    def complete(self, plan: TargetPlan, content: Mapping[str, Any]) -> None:
        """Record that the dataset is there."""
        self._hidden.put(COMPLETE, _json({**asdict(plan), **content}))

    def clear(self) -> None:
        """Remove the plans and the pieces, the plans last. Whoever is killed here leaves them to the next export."""
        names = [name for name in self._hidden.listed() if name != COMPLETE]
        self._hidden.delete(name for name in names if not name.startswith(PLANS))
        self._hidden.delete(name for name in names if name.startswith(PLANS))

    def _taken(self, current: TargetPlan) -> RoboCacheError:
        began = printable(current.started[:16], 16)  # to the minute
        return RoboCacheError(
            f"{printable(self._target.url, 48)}: an export of other recordings or options began {began} UTC; wait for "
            f"it, or if it was killed, {_GIVE_UP}"
        )

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(self._hidden.get(name))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._foreign(name)
        return found

    def _foreign(self, name: str) -> RoboCacheError:
        where = printable(f"{self._target.url}/{HIDDEN}/{name}", 110)
        return RoboCacheError(f"{where}: not a record of an export; check what wrote it, and delete it")


def digest_of(content: object) -> str:
    """Return a hash of JSON values, which stands for what a dataset consists of."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _plan(told: Mapping[str, Any]) -> TargetPlan:
    """Return a plan from its record; ValueError if it is not one."""
    digest, token, started = (told.get(name) for name in ("digest", "token", "started"))
    pieces, replaces = told.get("pieces"), told.get("replaces")
    if not (isinstance(digest, str) and isinstance(token, str) and isinstance(started, str)):
        raise ValueError("no texts")
    if not isinstance(pieces, int) or not isinstance(replaces, list):
        raise ValueError("no number of pieces, or no list of what it replaces")
    if not _TOKEN.fullmatch(token) or not all(isinstance(name, str) and is_entry(name) for name in replaces):
        raise ValueError("names of other places")  # files below these are deleted
    return TargetPlan(digest, token, pieces, started, tuple(replaces))


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode()
