"""What is known of the datasets of Open X-Embodiment and is not in their files: rates, and mixtures.

Rates are the control frequencies that are published with the datasets. A dataset that is not listed needs `rate_hz`.
"""

from __future__ import annotations

from robocache_ros.datasets.episode_source import DatasetError
from robocache_ros.errors import printable

# Steps per second, by the dataset's name.
RATES_HZ = {
    "fractal20220817_data": 3.0,
    "kuka": 10.0,
    "bridge": 5.0,
    "bridge_dataset": 5.0,
    "bridge_orig": 5.0,
    "taco_play": 15.0,
    "jaco_play": 10.0,
    "berkeley_cable_routing": 10.0,
    "roboturk": 10.0,
    "berkeley_autolab_ur5": 5.0,
    "toto": 30.0,
    "language_table": 10.0,
    "bc_z": 10.0,
    "droid": 15.0,
}
# The mixture that RT-X models were trained on: weight of each dataset.
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
# The "magic soup" that Octo was trained on.
MAGIC_SOUP = {
    "fractal20220817_data": 0.54087122203,
    "kuka": 0.8341046294,
    "bridge_dataset": 1.0,
    "taco_play": 2.0,
    "jaco_play": 1.0,
    "berkeley_cable_routing": 1.0,
    "roboturk": 2.0,
    "nyu_door_opening_surprising_effectiveness": 1.0,
    "viola": 2.0,
    "berkeley_autolab_ur5": 2.0,
    "toto": 1.0,
    "language_table": 0.1,
    "stanford_hydra_dataset_converted_externally_to_rlds": 2.0,
    "austin_buds_dataset_converted_externally_to_rlds": 1.0,
    "nyu_franka_play_dataset_converted_externally_to_rlds": 3.0,
    "furniture_bench_dataset_converted_externally_to_rlds": 0.1,
    "ucsd_kitchen_dataset_converted_externally_to_rlds": 2.0,
    "austin_sailor_dataset_converted_externally_to_rlds": 1.0,
    "austin_sirius_dataset_converted_externally_to_rlds": 1.0,
    "bc_z": 0.2,
    "dlr_edan_shared_control_converted_externally_to_rlds": 1.0,
    "iamlab_cmu_pickup_insert_converted_externally_to_rlds": 1.0,
    "utaustin_mutex": 1.0,
    "berkeley_fanuc_manipulation": 2.0,
    "cmu_stretch": 1.0,
}


def rate_of(name: str, rate_hz: float | None, where: str) -> float:
    """Return the rate that is given, else the published rate of the dataset.

    Errors:
        DatasetError: neither is known.
    """
    if rate_hz is not None:
        return float(rate_hz)
    if name in RATES_HZ:
        return RATES_HZ[name]
    raise DatasetError(f"{where}: the rate of {printable(name, 40)} is not known and RLDS has no stamps; give rate_hz")
