"""Makes the datasets of these tests importable for worker processes, which do not know the package `test`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from memory_episodes import Counting


@pytest.fixture
def counting() -> Counting:
    return Counting()
