"""`robocache view`: a recording, a run or a dataset in the Rerun viewer, or a layout for Foxglove."""

# No `from __future__ import annotations`: typer 0.9 does not evaluate string annotations.

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from robocache_ros.cli.options import (
    OptionalFloat,
    OptionalPath,
    OptionalText,
    SpecOfRecording,
    place,
    spec_of_recording,
    with_msg_path,
)
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.storage.new_files import check_new, write_new

WEB_PORT = 9090  # of Rerun

if TYPE_CHECKING:
    from robocache_ros.storage.paths import AnyPath
    from robocache_ros.view.sources import SceneOf


@with_msg_path
def view(
    source: Annotated[
        str,
        typer.Argument(parser=place, metavar="BAG|DATASET|RUN", help="A recording, a dataset, or the log of a run."),
    ],
    given: dict[str, Any],
    spec: SpecOfRecording = None,
    first: Annotated[
        float,
        typer.Option("--from", metavar="N", help="First second of a recording or a run; first episode of a dataset."),
    ] = 0,
    last: Annotated[
        OptionalFloat, typer.Option("--to", metavar="N", help="Second at which it ends; the episode after the last.")
    ] = None,
    split: Annotated[
        OptionalText, typer.Option("--split", metavar="NAME", help="Split of an RLDS dataset, such as val.")
    ] = None,
    save: Annotated[
        OptionalPath,
        typer.Option("--save", metavar="FILE", help="Write a recording of Rerun (.rrd) instead of opening a viewer."),
    ] = None,
    web: Annotated[bool, typer.Option("--web", help="Serve the viewer for a browser, until Ctrl-C.")] = False,
    foxglove: Annotated[
        OptionalPath,
        typer.Option("--foxglove", metavar="FILE", help="Write a layout for Foxglove and Lichtblick (.json) instead."),
    ] = None,
    plotjuggler: Annotated[
        OptionalPath,
        typer.Option("--plotjuggler", metavar="FILE", help="Write a layout for PlotJuggler (.xml) instead."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Show cameras, raw samples with the fused values over them, their validity and ages, poses and clouds."""
    from robocache_ros.cli import tables
    from robocache_ros.storage.paths import any_path

    files = {"--save": save, "--foxglove": foxglove, "--plotjuggler": plotjuggler}
    if sum(file is not None for file in files.values()) + web > 1:
        raise RoboCacheError(f"view: {', '.join(files)} and --web exclude each other; give one")
    check_new(*files.values(), overwrite=overwrite)
    msg_path = given.get("msg_path", ())
    path = any_path(source, "recordings")
    if layout := foxglove or plotjuggler:
        from robocache_ros.view import layouts

        if spec is None and _dataset_in(path):
            option = "--foxglove" if foxglove else "--plotjuggler"
            raise RoboCacheError(f"{option}: {printable(path, 60)} is a dataset; give its spec with --spec")
        loaded = spec_of_recording(source, spec, msg_path)
        text = json.dumps(layouts.foxglove(loaded), indent=1) if foxglove else layouts.plotjuggler(loaded)
        write_new(layout, text)
        tables.say(
            f"wrote {tables.argument(layout)}; import it in {'Foxglove or Lichtblick' if foxglove else 'PlotJuggler'}"
        )
        return
    began = time.monotonic()

    def draw(scene_of: "SceneOf") -> list[str]:
        from robocache_ros.formats.registry import format_of
        from robocache_ros.recorder.mcap import read_metadata
        from robocache_ros.recorder.run_log import RUN
        from robocache_ros.view import sources

        if isinstance(path, Path):
            if path.is_file() and RUN in read_metadata(path):
                return sources.show_run(path, scene_of, first, last)
            if path.exists() and (name := format_of(path)):
                options = {"split": split} if split else {}
                end = None if last is None else int(last)
                return sources.show_dataset(path, name, scene_of, int(first), end, **options)
            if inner := _dataset_in(path):
                raise RoboCacheError(f"{printable(path, 60)}: contains datasets; give one, such as its {inner}")
        return sources.show_recording(path, scene_of, spec_of_recording(source, spec, msg_path), first, last, msg_path)

    notes = _shown(path.name, draw, save, web)
    tables.show_notes(notes)
    if save is not None:
        seconds, size = time.monotonic() - began, save.stat().st_size / 1e6
        tables.say(
            f"wrote {tables.argument(save)} ({size:.1f} MB) in {seconds:.1f} s; next: rerun {tables.argument(save)}"
        )


def _dataset_in(path: "AnyPath") -> str:
    """Return the name of a folder if it is a dataset, else of a dataset in it; empty if there is none."""
    from robocache_ros.formats.registry import format_of

    if not isinstance(path, Path) or not path.is_dir():
        return ""
    inner = sorted(each for each in path.iterdir() if each.is_dir())
    return next((printable(each.name, 60) for each in (path, *inner) if format_of(each)), "")


def _shown(name: str, draw: Callable[["SceneOf"], list[str]], save: Path | None, web: bool) -> list[str]:
    """Show what `draw` draws, in the viewer or for a browser, or write it to a file; returns its notes."""
    from robocache_ros.cli import tables
    from robocache_ros.extras import need

    gc.disable()  # it would go through the many objects of modules again and again
    try:
        rr = need("rerun", "view")
        import torch

        from robocache_ros.view import scene, sources  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()
    recording = scene.open_recording(printable(name, 80))
    draft = save.with_name(f".{save.name}.part") if save else None
    if draft:
        try:
            recording.save(draft)
        except RuntimeError:
            raise RoboCacheError(f"{printable(save)}: cannot be written; choose another folder") from None
    elif web:
        url = recording.serve_grpc()
        rr.serve_web_viewer(open_browser=False)
        tables.say(f"open http://localhost:{WEB_PORT}/?url={quote(url, safe='')}; end with Ctrl-C")
    else:
        # The viewer is a program beside this Python, which need not be on the PATH.
        programs = [str(Path(sys.executable).parent), str(Path(need("rerun_cli", "view").__file__).parent)]
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), *programs])
        recording.spawn()
    made: list[scene.Scene] = []

    def scene_of(streams: Any, times: Any) -> scene.Scene:
        made.append(scene.Scene(recording, streams, times))
        if draft is None:  # for those who watch
            recording.send_blueprint(made[0].blueprint())
        return made[0]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small: several threads would wait for each other
    try:
        notes = draw(scene_of)
        recording.send_blueprint(made[0].blueprint())  # with what was found meanwhile
        recording.flush()
        if draft and save:
            recording.disconnect()
            os.replace(draft, save)
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)
        if draft:
            draft.unlink(missing_ok=True)
    while web:
        time.sleep(1)
    return notes
