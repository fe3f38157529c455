"""What is known of the datasets of Open X-Embodiment and is not in their files: rates, and mixtures.

Rates are those that the authors state in the overview of Open X-Embodiment. A dataset that is not listed needs
`rate_hz`.
"""

from __future__ import annotations

from robocache_ros.datasets.episode_source import DatasetError
from robocache_ros.errors import printable

# Steps per second, by the beginning of the dataset's name.
RATES_HZ = {
    "fractal20220817_data": 3.0,
    "kuka": 10.0,
    "bridge": 5.0,
    "taco_play": 15.0,
    "jaco_play": 10.0,
    "berkeley_cable_routing": 10.0,
    "roboturk": 10.0,
    "viola": 20.0,
    "berkeley_autolab_ur5": 5.0,
    "toto": 30.0,
    "language_table": 10.0,
    "bc_z": 10.0,
    "droid": 15.0,
}
# The mixture of RT-1-X and RT-2-X: weight of each dataset.
RT_X_MIXTURE = {
    "fractal20220817_data": 0.54087122203,
    "kuka": 0.8341046294,
    "bridge_dataset": 1.0,
    "taco_play": 2.0,
    "jaco_play": 2.0,
    "berkeley_cable_routing": 3.0,
    "roboturk": 1.0,
    "nyu_door_opening_surprising_effectiveness": 5.0,
    "viola": 2.0,
    "berkeley_autolab_ur5": 1.0,
    "toto": 1.0,
}


def rate_of(name: str, rate_hz: float | None, where: str) -> float:
    """Return the rate that is given, else the published rate of the dataset.

    Errors:
        DatasetError: neither is known.
    """
    if rate_hz is not None:
        return float(rate_hz)
    for known, rate in RATES_HZ.items():
        if name.startswith(known):
            return rate
    raise DatasetError(f"{where}: the rate of {printable(name, 40)} is not known and RLDS has no stamps; give rate_hz")
