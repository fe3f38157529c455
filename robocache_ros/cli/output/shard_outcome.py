"""`robocache export --shard`: its argument, and its output."""

from __future__ import annotations

from pathlib import Path

from robocache_ros.cli.output import tables
from robocache_ros.cli.output.json_output import print_document
from robocache_ros.errors import RoboCacheError, number_of, printable
from robocache_ros.export.shards.shard import Shard
from robocache_ros.export.shards.shard_job import ShardResult


def shard_of(text: str | None, pieces: Path | None, *, dry_run: bool) -> Shard | None:
    """Return the shard of a command, None if it has none."""
    if text is None:
        return None
    if dry_run:
        raise RoboCacheError("--shard: not with --dry-run, which tells of all recordings; leave out one of them")
    if pieces is None:
        raise RoboCacheError("--shard: needs a folder of pieces that all shards can write; add --pieces DIR")
    return Shard.parse(text)


def show(result: ShardResult, out: Path, *, json: bool) -> None:
    """Print what a shard has done, except for the dataset if it has written it."""
    failed = [f"failed: {loss.reason}" for loss in result.losses]
    if not json:
        tables.show_notes(failed)
        tables.say(state(result, out))
    elif not result.results:
        content = {
            "out": out,
            "shard": str(result.shard),
            "own": result.own,
            "converted": result.converted,
            "failed": result.failed,
            "total": result.total,
            "written": result.written,
        }
        print_document("export", content, exit_code=exit_code(result), errors=failed)


def exit_code(result: ShardResult) -> int:
    """Return the exit code of a shard: 1 if recordings are left out, those of all shards if it wrote the dataset."""
    losses = [loss for written in result.results for loss in written.failed] or result.losses
    return int(any(not loss.dropped for loss in losses))


def state(result: ShardResult, out: Path) -> str:
    """Describe in one line how far the export is."""
    where = printable(out, 60)
    are = "is" if result.total == 1 else "are"
    text = f"{result.converted:,} of {number_of(result.total, 'recording')} {are} converted"
    if result.failed:
        text += f", {result.failed:,} failed"
    return {
        "waiting": f"{text}; the last shard writes the dataset",
        "blocked": f"{text}; repair those and run their shards again, or all with --on-error skip",
        "elsewhere": f"{text}; another export is writing {where}",
        "before": f"{text}; {where} is complete",
        "here": text,
    }[result.written]
