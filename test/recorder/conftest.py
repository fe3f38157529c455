"""Recorders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from test.nodes.rig import until


@pytest.fixture
def wait() -> Callable[..., Any]:
    return until
