"""Trains a policy of LeRobot on a LeRobot dataset, with the batches of TimelineLoader instead of LeRobotDataset.

Needs lerobot 0.4.4 and the extras `datasets` and `training`. The policy is saved as `lerobot-train` saves it:
`robocache run OUT --spec robot.yaml` runs it.

python examples/train_lerobot_policy.py lift --out act --steps 20000
python examples/train_lerobot_policy.py lift --out act --set chunk_size=50 n_action_steps=50 use_vae=false
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from robocache_ros.datasets import Augmentation, LoaderOptions, TimelineLoader, Window
from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.read import ACTION, IMAGES, STATE
from robocache_ros.programs import HelpFormatter, run
from robocache_ros.training.training_data import data_info, default_workers, open_for_training, training_loader
from robocache_ros.training.training_options import TrainingOptions

try:
    from lerobot.configs.types import FeatureType
    from lerobot.datasets.lerobot_dataset import LeRobotDatasetMetadata
    from lerobot.datasets.utils import dataset_to_policy_features
    from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors
    from lerobot.policies.pretrained import PreTrainedPolicy
    from torchvision.ops.misc import FrozenBatchNorm2d
except ImportError as error:
    sys.exit(f"train_lerobot_policy: {error}; install it with: pip install lerobot==0.4.4")


def arguments() -> argparse.ArgumentParser:
    """Make the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("dataset", type=Path, help="folder of a LeRobot v3.0 dataset")
    add("--out", type=Path, required=True, help="folder of the policy, new")
    add("--policy", default="act", help="type of LeRobot's policy that observes one tick, such as act")
    add("--set", nargs="*", default=[], metavar="KEY=VALUE", help="options of its configuration")
    add("--image-shift", type=int, default=0, help="augmentation: move images by up to so many pixels")
    add("--steps", type=int, default=20_000, help="of the optimizer")
    add("--batch-size", type=int, default=64, help="samples of a batch")
    add("--learning-rate", type=float, default=1e-4, help="the highest; falls as a cosine to a tenth")
    add("--warmup", type=int, default=300, help="steps in which the learning rate rises")
    add("--average", type=float, default=0.999, help="decay per step of the average of the weights; 0: none")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of the policy")
    add("--compile", action=argparse.BooleanOptionalAction, help="torch.compile")
    add("--seed", type=int, default=0, help="of the weights and the order of the samples")
    add("--report-every", type=int, default=100, help="steps between two reports")
    return parser


def rows(loader: TimelineLoader, images: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    """Yield batches without end, with the names and shapes of LeRobot's."""
    while True:
        for batch in loader:
            found: dict[str, Any] = {STATE: batch["proprio"][:, -1], ACTION: batch["actions"]}
            found["action_is_pad"] = batch["action_is_pad"]
            for key, names in images.items():
                newest: Tensor = batch[key][:, -1]  # (B, 3, H, W), or (B, C, 3, H, W) of cameras of one size
                for index, name in enumerate(names):
                    found[f"{IMAGES}{name}"] = newest[:, index] if key == "vision" else newest
            yield found | {"task": [""] * len(found[ACTION])}


@torch.no_grad()
def normalize_frozen_layers(policy: PreTrainedPolicy, batch: dict[str, Any]) -> None:
    """Give the batch norms that training does not change, and no download has set, the statistics of a batch.

    ACT freezes those of its ResNet. From random weights they would normalise nothing.
    """

    def measure(layer: FrozenBatchNorm2d, given: tuple[Tensor]) -> None:
        layer.running_mean.copy_(given[0].float().mean((0, 2, 3)))
        layer.running_var.copy_(given[0].float().var((0, 2, 3)))

    layers = [each for each in policy.modules() if isinstance(each, FrozenBatchNorm2d)]
    new = [each for each in layers if not each.running_mean.any() and (each.running_var == 1).all()]
    hooks = [layer.register_forward_pre_hook(measure) for layer in new]
    policy.forward(batch)
    for hook in hooks:
        hook.remove()


def new_policy(kind: str, meta: LeRobotDatasetMetadata, device: str, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a policy of a type for a dataset, with random weights, and what converts its batches and its actions."""
    features = dataset_to_policy_features(meta.features)
    defaults = {"pretrained_backbone_weights": None} if kind == "act" else {}
    config = make_policy_config(kind, device=device, push_to_hub=False, **(defaults | dict(options)))
    config.input_features = {
        key: each for key, each in features.items() if key == STATE or each.type is FeatureType.VISUAL
    }
    config.output_features = {ACTION: features[ACTION]}
    if config.observation_delta_indices not in (None, [0]) or config.action_delta_indices is None:
        raise RoboCacheError(f"policy: {kind} does not observe one tick and plan a chunk; choose act")
    policy = get_policy_class(kind)(config).to(device).train()
    return policy, *make_pre_post_processors(config, dataset_stats=meta.stats)


def main(given: list[str] | None = None) -> None:
    """Train as the command line says."""
    args = arguments().parse_args(given)
    if args.out.exists():
        raise RoboCacheError(f"{args.out}: exists; give a new folder")
    training = TrainingOptions(
        learning_rate=args.learning_rate, steps=args.steps, warmup=args.warmup, clip_norm=10.0,
        average=args.average, seed=args.seed,
    )  # fmt: skip
    options = {key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in args.set)}
    meta = LeRobotDatasetMetadata(args.dataset.name, root=args.dataset)
    torch.manual_seed(args.seed)
    policy, before, after = new_policy(args.policy, meta, args.device, options)
    config = policy.config
    offset, horizon = config.action_delta_indices[0], len(config.action_delta_indices)
    dataset = open_for_training(
        args.dataset, rate_hz=meta.fps, window=Window(1, horizon, offset, n_images=1), vision=True
    )
    info = data_info(dataset)
    loader = training_loader(
        dataset,
        info,
        args.batch_size,
        options=LoaderOptions(image_dtype=torch.float32),  # the policy normalizes
        augmentation=Augmentation(shift=args.image_shift),
        workers=default_workers(),
        statistics=None,
        device=torch.device(args.device),
        seed=args.seed,
    )
    print(f"{dataset!r}, {sum(each.numel() for each in policy.parameters()) / 1e6:.1f} million parameters")
    fused = torch.device(args.device).type == "cuda"
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1.0, weight_decay=training.weight_decay, fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, training.rate_at)
    batches = rows(loader, info.images)
    normalize_frozen_layers(policy, before(next(batches)))
    weights = list(policy.parameters())
    averaged = [torch.zeros_like(each) for each in weights]
    update_average = get_ema_multi_avg_fn(training.average)  # type: ignore[no-untyped-call]
    if args.compile:
        policy.model.compile(mode="reduce-overhead")  # CUDA graphs: launching the many small kernels takes longest
    began = time.monotonic()
    for step, batch in zip(range(1, args.steps + 1), batches, strict=False):
        with torch.autocast(args.device.partition(":")[0], torch.bfloat16):
            loss, _ = policy.forward(before(batch))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), training.clip_norm)
        optimizer.step()
        schedule.step()
        update_average(averaged, weights, 0)
        if step % args.report_every == 0 or step == args.steps:
            print(f"step {step:,}: loss {loss.item():.4g}, {step / (time.monotonic() - began):.1f} steps/s", flush=True)
    loader.close()
    with torch.no_grad():
        for weight, average in zip(weights, averaged, strict=True):
            weight.copy_(average / (1 - training.average**args.steps))  # the rest are the zeros of the start
    for saved in (policy, before, after):
        saved.save_pretrained(args.out)
    print(f"{args.out}: the policy, for robocache run")


if __name__ == "__main__":
    sys.exit(run("train_lerobot_policy", main))
