"""How one dataset of an export is made: its plan, its formats, and the recordings that are not in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from robocache_ros.bags.reader import Bag, check_recordings
from robocache_ros.errors import RoboCacheError, SeveralErrors, number_of, printable
from robocache_ros.export.bucket.piece_path import remove_copies
from robocache_ros.export.engines.task_engine import Engine
from robocache_ros.export.episodes.labels import Labels
from robocache_ros.export.exported_recording import ExportedRecording, FailedRecording
from robocache_ros.export.file_errors import file_errors
from robocache_ros.export.merge_pieces import merge_pieces, needed_encodings
from robocache_ros.export.outputs.new_dataset import NewDataset
from robocache_ros.export.outputs.output import Output
from robocache_ros.export.pieces.plan import Plan
from robocache_ros.export.pieces.progress import Progress
from robocache_ros.export.pieces.recording_to_piece import Outcome
from robocache_ros.export.recordings.planned_recording import PlannedRecording
from robocache_ros.export.resolved_arguments import device_of, load_formats, resolved_spec
from robocache_ros.remote.any_path import is_url
from robocache_ros.remote.store_errors import StoreError
from robocache_ros.spec import FusionSpec

THREADS = 8  # recordings at URLs that are opened at the same time
LINES = 20  # maximum number of failed recordings listed in an error


class DatasetPlan:
    """The plan of a dataset: first `check` its recordings, then make its pieces and `complete` it, then `write` it.

    Args:
        output: the dataset.
        recordings: of the export, in the order of the episodes.
        device: as for an export.

    Attributes:
        name: of its folder; empty if it is the only dataset.
        recordings: of the export.
        plan: without the recordings that do not match.
        formats: that it is written in.
        failed: the recordings that are not in it, and why.

    Errors:
        RoboCacheError: the spec and the options cannot be used.
    """

    def __init__(self, output: Output, recordings: Sequence[PlannedRecording], device: str) -> None:
        self.name, self.recordings = output.name, tuple(recordings)
        with self._named():
            spec = resolved_spec(output.spec, output.options)
            selected = device_of(device, output.options)
            self.formats = load_formats(Labels(spec, output.options).spec, output.options)
        encodings = needed_encodings(self.formats, spec, output.options)
        self.plan = Plan(tuple(recordings), spec, output.options, encodings, selected)
        self._total = len(self.plan.distinct)
        self.failed: dict[PlannedRecording, str] = {}
        self.made: tuple[Outcome, ...] = ()
        self.losses: tuple[FailedRecording, ...] = ()
        self._earlier = 0  # recordings that failed in an earlier export, and were not tried again

    def check(self, on_error: str) -> None:
        """Check the recordings; leave out those that do not match, or with `on_error` fail raise an error."""
        with self._named():
            self.failed = _check(self.plan, on_error)
        kept = tuple(recording for recording in self.plan.recordings if recording.frames_of not in self.failed)
        self.plan = replace(self.plan, recordings=kept)

    def complete(
        self, outcomes: Mapping[PlannedRecording, Outcome], on_error: str, out: Path, pieces: str | Path | None
    ) -> None:
        """Take the outcomes of the recordings; raise an error that names those that failed, unless they are skipped.

        Args:
            outcomes: of the recordings of the plan.
            on_error: `fail` or `skip`.
            out: the folder of the export, for the error.
            pieces: the folder of the pieces, for the error; None: in `out`.
        """
        self.failed |= {each: outcomes[each].error for each in self.plan.distinct if outcomes[each].error}
        self.losses = tuple(
            FailedRecording(each.path, reason, dropped=each in outcomes and outcomes[each].dropped)
            for each, reason in self.failed.items()
        )
        self._earlier = sum(bool(outcome.error and outcome.reused) for outcome in outcomes.values())
        with self._named():
            self._check_failed(on_error, out, pieces)
        self.made = tuple(
            replace(outcomes[each.frames_of], recording=each)
            for each in self.plan.recordings
            if each.frames_of not in self.failed
        )

    def write(
        self, new: NewDataset, title: str | None, engine: Engine, tell: Progress
    ) -> tuple[ExportedRecording, ...]:
        """Write the dataset into the folder of its name, with a report if it has a title; return its recordings."""
        with self._named():
            made, losses = self.made, self.losses
            try:
                return merge_pieces(self.plan, self.formats, made, losses, new, self.name, title, engine, tell)
            finally:
                remove_copies(outcome.piece for outcome in made if outcome.piece)

    @property
    def entries(self) -> tuple[str, ...]:
        """The files and folders in the target by which readers recognize the dataset, of each format."""
        several = len(self.formats) > 1
        parts = [(self.name, format_.name if several else "", format_.entry) for format_ in self.formats]
        return tuple("/".join(filter(None, part)) for part in parts)

    @property
    def reused(self) -> list[str]:
        """Notes on the recordings that an earlier export converted."""
        distinct = {outcome.piece: outcome for outcome in self.made}.values()
        notes = []
        if reused := sum(outcome.reused for outcome in distinct):
            were = f"{'was' if len(distinct) == 1 else 'were'} converted by an earlier export and reused"
            notes.append(f"{reused} of {number_of(len(distinct), 'recording')} {were}")
        if replaced := [outcome.recording.path.name for outcome in distinct if outcome.replaced]:
            pieces = "the piece that an earlier export made was" if len(replaced) == 1 else "their pieces were"
            notes.append(f"{printable(', '.join(replaced), 80)}: {pieces} damaged and made again")
        return [*notes, *self._not_tried]

    @property
    def _not_tried(self) -> list[str]:
        """A note on the recordings that failed in an earlier export."""
        if not self._earlier:
            return []
        failed, them = number_of(self._earlier, "recording"), "it" if self._earlier == 1 else "them"
        return [f"{failed} failed in an earlier export; robocache fleet retry lets the next one try {them}"]

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the dataset in the lines of errors, if there are several datasets."""
        try:
            yield
        except RoboCacheError as error:
            if not self.name:
                raise
            where = printable(self.name, 40)
            raise SeveralErrors("\n".join(f"{where}: {line}" for line in str(error).splitlines())) from None

    def _check_failed(self, on_error: str, out: Path, pieces: str | Path | None) -> None:
        if len(self.losses) == self._total:
            raise SeveralErrors("\n".join([lines([loss.reason for loss in self.losses]), *self._not_tried]))
        failed = [loss.reason for loss in self.losses if not loss.dropped]
        if failed and on_error == "fail":
            raise SeveralErrors(
                f"{lines(failed)}\n{printable(out, 40)}: no dataset, because {len(failed)} of "
                f"{number_of(self._total, 'recording')} failed; the others are kept in "
                f"{printable(pieces, 40) if pieces else 'it'}: run the same command again after fixing these, or with "
                "--on-error skip" + "".join(f"\n{n}" for n in self._not_tried)
            )


def check_recording(recording: PlannedRecording, spec: FusionSpec) -> None:
    """Refuse a recording that cannot be read or does not match the spec, before the first one is processed."""
    check_recordings([recording.path], spec)
    if recording.is_part and not is_url(recording.path):  # which may have to be downloaded
        with Bag(recording.path) as bag:
            recording.log_range(bag.start_ns, bag.stop_ns)


def _check(plan: Plan, on_error: str) -> dict[PlannedRecording, str]:
    """Check all recordings; return the error of each invalid one, or raise an error that names them."""

    def checked(recording: PlannedRecording) -> str:
        try:
            with file_errors(recording.path):
                check_recording(recording, plan.spec)
        except StoreError:  # which all would have
            raise
        except RoboCacheError as error:
            return str(error)
        return ""

    if any(is_url(recording.path) for recording in plan.distinct):  # these are waited for
        with ThreadPoolExecutor(THREADS, "check") as pool:
            errors = list(pool.map(checked, plan.distinct))
    else:
        errors = [checked(recording) for recording in plan.distinct]
    failed = {recording: error for recording, error in zip(plan.distinct, errors, strict=True) if error}
    if failed and (on_error == "fail" or len(failed) == len(plan.distinct)):
        others = number_of(len(plan.distinct) - len(failed), "other recording")
        can = f"\n{others} can be used; leave these out, or use --on-error skip"
        hint = can if len(failed) < len(plan.distinct) else ""
        raise SeveralErrors(lines(failed.values()) + hint)
    return failed


def lines(failed: Collection[str]) -> str:
    """Format one line for each failed recording, given the reasons."""
    lines = list(failed)[:LINES]
    more = [f"and {number_of(len(failed) - LINES, 'more recording')}"] if len(failed) > LINES else []
    return "\n".join([*lines, *more])
