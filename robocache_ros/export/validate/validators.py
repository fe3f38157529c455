"""The validators of the formats, and the way to validate a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Protocol

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.export.formats import FORMATS, known_formats, load_format
from robocache_ros.export.validate.checksum_list import check_checksums
from robocache_ros.export.validate.findings import Findings
from robocache_ros.export.validate.recordings_check import check_recordings
from robocache_ros.remote.any_path import as_path

# Module and name of the `Validator` of each format, imported on use.
VALIDATORS = (
    "robocache_ros.export.validate.lerobot.lerobot_v3_check:LEROBOT_V3",
    "robocache_ros.export.validate.lerobot.lerobot_v21_check:LEROBOT_V21",
    "robocache_ros.export.validate.robomimic_check:ROBOMIMIC_CHECK",
    "robocache_ros.export.validate.zarr_check:ZARR_CHECK",
    "robocache_ros.export.validate.rlds_check:RLDS_CHECK",
    "robocache_ros.export.validate.webdataset_check:WEBDATASET_CHECK",
    "robocache_ros.export.validate.mcap.fused_recordings_check:FUSED_RECORDINGS_CHECK",
    "robocache_ros.export.validate.delta.delta_check:DELTA_CHECK",
)


class Validator(Protocol):
    """Validates the datasets of one format.

    Attributes:
        title: name of the format in the output.
    """

    title: str

    def recognizes(self, dataset: Path) -> bool:
        """Return whether a folder or file is a dataset of this format, however damaged."""

    def check(self, findings: Findings) -> None:
        """Report everything that is wrong with the dataset `findings.dataset`.

        Errors:
            RoboCacheError: the checks cannot go on; the message becomes a finding.
        """


def validate(dataset: str | Path, *, decode: bool = False, recordings: bool = False) -> list[Findings]:
    """Read every file of a dataset and report what is wrong.

    Args:
        dataset: a folder or a file of one of the formats, or a folder with a dataset in each of its subfolders.
        decode: also decode every image.
        recordings: also compare the recordings that the dataset was exported from, if they are on this machine.

    Returns:
        What was found in each dataset.

    Errors:
        RoboCacheError: there is no dataset of a known format.
    """
    path = Path(os.path.abspath(as_path(dataset)))
    where = printable(path)
    if not path.exists():
        raise RoboCacheError(f"{where}: does not exist; give the folder of a dataset")
    known = list(_known())
    inside = sorted(path.iterdir()) if path.is_dir() else []
    for candidates in ([path], inside):
        found = [(one, validator) for one in candidates for validator in known if validator.recognizes(one)]
        if found:
            known_folders = {one for one, _ in found}
            others = [one for one in candidates if one.is_dir() and one not in known_folders]
            checked = [_validate(one, validator, decode) for one, validator in found]
            for findings in checked if recordings else ():
                check_recordings(findings)
            checked[-1].unchecked += [f"{printable(one.name)}: not a dataset of a known format" for one in others]
            return checked
    titles = ", ".join(validator.title for validator in known)
    raise RoboCacheError(f"{where}: not a dataset that can be validated; known are {titles}")


def _validate(dataset: Path, validator: Validator, decode: bool) -> Findings:
    findings = Findings(dataset, validator.title, decode=decode)
    try:
        validator.check(findings)
    except RoboCacheError as error:
        where, _, what = str(error).partition(": ")
        findings.add(where, what)
        findings.skip("everything else: the error above stops the validation")
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        # A value of a type that no format has, where the checks do not expect it.
        findings.add(dataset.name, f"cannot be read further ({type(error).__name__}: {error})")
        findings.skip("everything else: the error above stops the validation")
    if dataset.is_dir():
        check_checksums(findings)
    return findings


def _known() -> Iterator[Validator]:
    """Yield the validators of this package, then those that formats of other packages bring."""
    for target in VALIDATORS:
        module, _, name = target.partition(":")
        yield getattr(import_module(module), name)
    for name in known_formats():
        if name not in FORMATS:
            with suppress(RoboCacheError):  # a format that cannot be imported
                validator = getattr(load_format(name), "validator", None)
                if validator is not None:
                    yield validator
