"""Saves an ACT policy with the statistics of a dataset, as `lerobot-train` does: save_policy.py DATASET FOLDER."""

import json
import sys

import without_cuda  # noqa: F401

# isort: split

from lerobot.configs.types import FeatureType
from lerobot.datasets.lerobot_dataset import LeRobotDatasetMetadata
from lerobot.datasets.utils import dataset_to_policy_features
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from lerobot.policies.factory import make_pre_post_processors

dataset, folder = sys.argv[1:]
meta = LeRobotDatasetMetadata("robot/reach", root=dataset)
features = dataset_to_policy_features(meta.features)
inputs = {"observation.state", *(name for name, about in features.items() if about.type is FeatureType.VISUAL)}
config = ACTConfig(
    input_features={name: features[name] for name in sorted(inputs)},
    output_features={"action": features["action"]},
    chunk_size=30,
    n_action_steps=20,
    dim_model=8,
    n_heads=1,
    dim_feedforward=8,
    pretrained_backbone_weights=None,
    device="cpu",
    push_to_hub=False,
)
for saved in (ACTPolicy(config), *make_pre_post_processors(config, dataset_stats=meta.stats)):
    saved.save_pretrained(folder)
wanted = {name: {key: meta.stats[name][key].reshape(-1).tolist() for key in ("mean", "std")} for name in features}
sys.stdout.write(json.dumps(wanted) + "\n")
