"""Validation of recordings (mcap) of the fused stream, as the format `mcap` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robocache_ros.bags.reader import CHECKED, Bag
from robocache_ros.errors import RoboCacheError
from robocache_ros.export.validate.exported_rows import ExportedRows
from robocache_ros.export.validate.findings import Findings, file_in, files_in, read_json
from robocache_ros.export.validate.mcap.episode_messages import INDEX, EpisodeMessages, episode_folder


class FusedRecordingsCheck:
    """Reads every message of every recording, and compares them with each other and with robocache.json."""

    title = "recordings (mcap) of the fused stream"

    def recognizes(self, dataset: Path) -> bool:
        """Return whether the folder has recordings of episodes."""
        return dataset.is_dir() and any(_folders(dataset))

    def check(self, findings: Findings) -> None:
        """Report everything that is wrong.

        Errors:
            RoboCacheError: robocache.json cannot be used.
        """
        told = read_json(findings.dataset, INDEX)
        exported = ExportedRows(findings, INDEX, told)
        episodes = {episode_folder(index): about for index, about in enumerate(told["episodes"])}
        for folder in _folders(findings.dataset):
            findings.check(folder.name in episodes, folder.name, f"is not in {INDEX}")
        for number, (name, about) in enumerate(episodes.items()):
            recording = told["recordings"][about["recording"]]
            wanted = {**about, "task": recording["task"] if about["task"] is None else about["task"]}
            with findings.reading(name):
                _check_recording(findings, number, wanted, told, exported)
                findings.counted["episodes"] += 1


def _folders(dataset: Path) -> list[Path]:
    return [folder for folder in sorted(dataset.glob("episode_*")) if any(folder.glob("episode_*.mcap"))]


def _check_recording(
    findings: Findings, number: int, wanted: dict[str, Any], told: dict[str, Any], exported: ExportedRows
) -> None:
    name = episode_folder(number)
    folder = findings.dataset / name
    if not folder.is_dir():
        raise RoboCacheError(f"{name}: is missing; it is in {INDEX}")
    for file in files_in(findings.dataset, f"{name}/*"):  # metadata.yaml and recordings, which `Bag` opens
        file_in(findings.dataset, file)
    try:
        bag = Bag(folder)
    except RoboCacheError as error:
        raise RoboCacheError(f"{name}: {str(error).removeprefix(f'{folder}: ')}") from None
    with bag:
        EpisodeMessages(findings, number, bag, wanted, told, exported).check()
        for note in bag.notes:  # complete after all messages have been read
            findings.add(name, note.removeprefix(f"{name}: "))
        findings.check(bag.integrity == CHECKED, name, "not every message has a checksum")


FUSED_RECORDINGS_CHECK = FusedRecordingsCheck()
