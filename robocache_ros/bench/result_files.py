"""What every benchmark does on its way: it says what it measures, and its files are complete at any time."""

from __future__ import annotations

import sys
import time
from pathlib import Path


def tell(text: str) -> None:
    """Print a line about the progress, with the time."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def replace(path: Path, text: str) -> None:
    """Write a file as a whole, and its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
