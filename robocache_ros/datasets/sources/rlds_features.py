"""Which features of a TFDS dataset are images, proprioception, actions and language: the conventions of Open X.

- vision: every image of `steps/observation` whose name does not contain `depth`.
- proprio: of `steps/observation`, the vector `proprio`, `state` or `robot_state`, the first that there is; else every
  vector or number of a floating-point type whose name does not contain `embedding`.
- actions: `steps/action`; if it is a dictionary, every feature of a floating-point type in it.
- language: the first text of `steps/language_instruction`, `steps/observation/natural_language_instruction` and
  `steps/observation/language_instruction`.
- rewards: `steps/reward`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from robocache_ros.datasets.episode_source import DatasetError
from robocache_ros.errors import printable
from robocache_ros.tfrecord.tfds_features import TfdsFeature

STEPS, OBSERVATION, ACTION = "steps/", "steps/observation/", "steps/action"
_PROPRIO = ("proprio", "state", "robot_state")
_LANGUAGE = (
    "steps/language_instruction",
    "steps/observation/natural_language_instruction",
    "steps/observation/language_instruction",
)
KINDS = ("vision", "proprio", "actions", "language")
Mapped = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class RldsFeatures:
    """Paths of features by what they are; see the rules above."""

    vision: tuple[str, ...]
    proprio: tuple[str, ...]
    actions: tuple[str, ...]
    language: tuple[str, ...]
    reward: tuple[str, ...]

    @property
    def all(self) -> set[str]:
        """All paths."""
        return {*self.vision, *self.proprio, *self.actions, *self.language, *self.reward}


def find_features(features: Sequence[TfdsFeature], mapping: Mapped, where: str) -> RldsFeatures:
    """Find the features by the rules above.

    Args:
        features: of the dataset.
        mapping: for any of vision, proprio, actions and language the paths to use instead, such as
            `{"proprio": ["observation/joints", "observation/gripper"]}`; `steps/` may be left out.
        where: the dataset, for errors.

    Errors:
        DatasetError: the mapping names a feature that there is not.
    """
    steps = {feature.path: feature for feature in features if feature.path.startswith(STEPS) and feature.levels == 1}
    found = {
        "vision": [p for p, f in steps.items() if p.startswith(OBSERVATION) and f.kind == "image" and "depth" not in p],
        "proprio": _proprio(steps),
        "actions": [p for p, f in steps.items() if p == ACTION or (p.startswith(ACTION + "/") and _floating(f))],
        "language": [p for p in _LANGUAGE if p in steps and steps[p].kind == "text"],
    }
    for kind, paths in mapping.items():
        if kind not in KINDS:
            raise DatasetError(f"features: {printable(kind, 40)} is not one of {', '.join(KINDS)}; choose one of them")
        given = [paths] if isinstance(paths, str) else list(paths)
        found[kind] = [path if path in steps else STEPS + path for path in given]
        missing = [path for path in found[kind] if path not in steps]
        if missing:
            raise DatasetError(f"{where}: has no feature {printable(missing[0], 60)}; features.json has the names")
    reward = tuple(path for path in ("steps/reward",) if path in steps)
    vision, proprio, actions, language = (tuple(found[kind]) for kind in KINDS)
    return RldsFeatures(vision, proprio, actions, language, reward)


def _proprio(steps: Mapping[str, TfdsFeature]) -> list[str]:
    vectors = {p.removeprefix(OBSERVATION): p for p, f in steps.items() if p.startswith(OBSERVATION) and _floating(f)}
    for name in _PROPRIO:
        if name in vectors:
            return [vectors[name]]
    return [path for name, path in vectors.items() if "embedding" not in name]


def _floating(feature: TfdsFeature) -> bool:
    is_vector = feature.kind == "tensor" and len(feature.shape) <= 1 and feature.encoding == "none"
    return is_vector and feature.dtype.startswith("float")
