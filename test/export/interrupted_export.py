"""Runs `robocache`, and sends a signal to its process group when an export tells the first event of a kind.

Arguments: the name of the event in robocache_ros.exporter.progress, the number of the signal, and those of
`robocache`. A test that looked for the event from outside could miss it on a busy machine: the export goes on.
"""

from __future__ import annotations

import math
import os
import sys

from robocache_ros.cli import progress as progress_display
from robocache_ros.cli.commands import main
from robocache_ros.exporter import progress

sent: list[progress.Event] = []


class Interrupting(progress_display.Lines):
    """Interrupts the export that it shows."""

    def __call__(self, event: progress.Event) -> None:
        super().__call__(event)
        if isinstance(event, getattr(progress, sys.argv[1])) and not sent:
            sent.append(event)
            os.killpg(os.getpgid(0), int(sys.argv[2]))  # as a terminal does


progress_display.Lines = Interrupting  # type: ignore[misc]
progress_display.EVERY_S = math.inf  # a line of progress is not what the tests look for
if __name__ == "__main__":
    main(sys.argv[3:])
