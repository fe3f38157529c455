"""What is known of the datasets of Open X-Embodiment and is not in their files: rates, and mixtures.

A rate is here if two lists agree on it: `fps` in `lerobot/common/datasets/push_dataset_to_hub/oxe/configs.yaml` of
https://github.com/huggingface/lerobot (up to version 0.1), and `configs/dataset_control_freq.json` of
https://github.com/thu-ml/RoboticsDiffusionTransformer. They differ on `dobbe` (3.75 and 30 Hz). A dataset that is not
here needs `rate_hz`. The weights are those of `octo/data/oxe/oxe_dataset_mixes.py` of
https://github.com/octo-models/octo.
"""

from __future__ import annotations

from robocache_ros.errors import printable
from robocache_ros.formats.read import DatasetError

# Steps per second -> names of datasets. Bridge has another name in each of its releases.
_DATASETS_BY_RATE = {
    1.0: (
        "robo_net",
        "uiuc_d3field",
    ),
    2.0: ("ucsd_kitchen_dataset_converted_externally_to_rlds",),
    3.0: (
        "fractal20220817_data",
        "nyu_door_opening_surprising_effectiveness",
        "nyu_rot_dataset_converted_externally_to_rlds",
        "nyu_franka_play_dataset_converted_externally_to_rlds",
        "ucsd_pick_and_place_dataset_converted_externally_to_rlds",
        "berkeley_gnm_recon",
    ),
    5.0: (
        "bridge",
        "bridge_dataset",
        "bridge_orig",
        "berkeley_autolab_ur5",
        "berkeley_mvp_converted_externally_to_rlds",
        "dlr_edan_shared_control_converted_externally_to_rlds",
        "stanford_robocook_converted_externally_to_rlds",
        "cmu_play_fusion",
        "berkeley_gnm_cory_hall",
    ),
    10.0: (
        "kuka",
        "jaco_play",
        "berkeley_cable_routing",
        "roboturk",
        "language_table",
        "columbia_cairlab_pusht_real",
        "stanford_hydra_dataset_converted_externally_to_rlds",
        "furniture_bench_dataset_converted_externally_to_rlds",
        "bc_z",
        "utokyo_pr2_opening_fridge_converted_externally_to_rlds",
        "utokyo_pr2_tabletop_manipulation_converted_externally_to_rlds",
        "utokyo_xarm_pick_and_place_converted_externally_to_rlds",
        "utokyo_xarm_bimanual_converted_externally_to_rlds",
        "kaist_nonprehensile_converted_externally_to_rlds",
        "tokyo_u_lsmo_converted_externally_to_rlds",
        "dlr_sara_pour_converted_externally_to_rlds",
        "dlr_sara_grid_clamp_converted_externally_to_rlds",
        "imperialcollege_sawyer_wrist_cam",
        "berkeley_fanuc_manipulation",
        "cmu_stretch",
        "berkeley_gnm_sac_son",
        "fmb",
    ),
    12.5: ("asu_table_top_converted_externally_to_rlds",),
    15.0: (
        "taco_play",
        "droid",
    ),
    20.0: (
        "viola",
        "stanford_kuka_multimodal_dataset_converted_externally_to_rlds",
        "austin_buds_dataset_converted_externally_to_rlds",
        "maniskill_dataset_converted_externally_to_rlds",
        "austin_sailor_dataset_converted_externally_to_rlds",
        "austin_sirius_dataset_converted_externally_to_rlds",
        "iamlab_cmu_pickup_insert_converted_externally_to_rlds",
        "utaustin_mutex",
    ),
    30.0: (
        "toto",
        "berkeley_rpt_converted_externally_to_rlds",
    ),
}
RATES_HZ = {name: rate_hz for rate_hz, names in _DATASETS_BY_RATE.items() for name in names}
# Octo's `rtx`, the mixture of RT-X: weight of each dataset.
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
# Octo's `oxe_magic_soup`, which Octo was trained on.
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
