"""Trains a policy on a dataset: an export of this project, LeRobot, RLDS, CALVIN or robomimic.

Needs the extras `datasets` and `training`.

python examples/train_policy.py lift --out run --policy act-13m --steps 20000
torchrun --nproc-per-node 8 examples/train_policy.py lift --out run      # a process per GPU
python examples/train_policy.py lift --out run --resume                  # where it stopped, with the same arguments
python examples/train_policy.py lift --out run --resume --steps 40000    # the same, with another one
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from robocache_ros.datasets import Augmentation, Window
from robocache_ros.datasets.loader.timeline_loader import CACHES
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.programs import HelpFormatter, run
from robocache_ros.training.checkpoints import checkpoint_in, read_checkpoint, resume, save_checkpoint
from robocache_ros.training.policies.make_policy import make_policy, parameters
from robocache_ros.training.policies.policy_config import PRESETS, PolicyConfig
from robocache_ros.training.process_group import process_group
from robocache_ros.training.trainer import Trainer
from robocache_ros.training.training_data import (
    DataInfo,
    data_info,
    default_workers,
    open_for_training,
    training_loader,
)
from robocache_ros.training.training_options import TrainingOptions
from robocache_ros.training.training_progress import TrainingProgress

DEFAULT_POLICIES = {"cuda": "act-13m", "cpu": "tiny"}


def arguments() -> argparse.ArgumentParser:
    """Make the options of the command line."""
    default = TrainingOptions()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add, switch = (
        parser.add_argument,
        partial(parser.add_argument, action=argparse.BooleanOptionalAction, default=False),
    )
    add("dataset", type=Path, help="folder of the dataset, or its file")
    add("--out", type=Path, required=True, help="folder for checkpoint.pt and TensorBoard's files")
    add("--format", default="auto", help="of the dataset, such as webdataset; auto: by its files")
    add("--split", help="of rlds and calvin, such as val; of robomimic the mask; default: that of the format")
    add(
        "--policy",
        choices=sorted(PRESETS),
        help="kind and size; default: " + ", ".join(f"{name} on {kind}" for kind, name in DEFAULT_POLICIES.items()),
    )
    add("--rate-hz", type=float, default=50.0, help="ticks per second")
    add("--n-obs", type=int, default=2, help="ticks that are observed")
    add("--horizon", type=int, default=16, help="ticks of actions that are predicted")
    add("--action-offset", type=int, default=0, help="ticks from the last observation to the first action")
    switch("--vision", help="use the images")
    add("--image-shift", type=int, default=0, help="augmentation: move images by up to so many pixels")
    add("--proprio-noise", type=float, default=0.0, help="augmentation: standard deviation, of normalised values")
    add("--batch-size", type=int, default=32, help="samples of a batch, per process")
    add("--workers", type=int, default=default_workers(), help="processes that read, per process")
    add("--cache", choices=CACHES, default="auto", help="keep the samples in memory; auto: those that fit")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    add("--steps", type=int, default=default.steps, help="of the optimizer, in all")
    add("--learning-rate", type=float, default=default.learning_rate, help="the highest; falls as a cosine to a tenth")
    add("--warmup", type=int, default=default.warmup, help="steps in which the learning rate rises")
    add("--weight-decay", type=float, default=default.weight_decay, help="of AdamW")
    add("--clip-norm", type=float, default=default.clip_norm, help="largest norm of the gradients; 0: no limit")
    add("--accumulate", type=int, default=default.accumulate, help="batches of a step")
    add("--average", type=float, default=default.average, help="decay per step of the average of the weights; 0: none")
    switch("--bf16", help="autocast to bfloat16")
    switch("--compile", help="torch.compile")
    switch("--cuda-graph", default=None, help="replay whole steps as a CUDA graph; else where one process can")
    switch("--deterministic", help="on a GPU, the same bits in each run; slower")
    add("--seed", type=int, default=default.seed, help="of the weights, the noise and the order of the samples")
    add("--report-every", type=positive, default=50, help="steps between two reports")
    add("--save-every", type=positive, default=1000, help="steps between two checkpoints; also at the end")
    switch("--tensorboard", help="write TensorBoard's files")
    add("--resume", action="store_true", help="continue from checkpoint.pt, with its arguments where none are given")
    return parser


def parsed(given: list[str] | None = None) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Read the command line; return the arguments, and those of the run that is resumed, if one is."""
    parser = arguments()
    args = parser.parse_args(given)
    if not args.resume:
        return args, {}
    checkpoint = checkpoint_in(args.out, resumed=True)
    earlier = read_checkpoint(checkpoint).arguments
    for action in parser._actions:  # argparse does not check a default
        if action.dest not in earlier or action.dest not in stored(args):
            continue
        value, default = earlier[action.dest], action.default
        optional = bool | None if isinstance(action, argparse.BooleanOptionalAction) else str | None
        kind = type(value) is type(default) or (default is None and isinstance(value, optional))
        if not kind or (action.choices is not None and value not in action.choices):
            text = f"{printable(checkpoint, 60)}: argument {action.dest} is {printable(value, 30)}"
            raise RoboCacheError(f"{text}; give another checkpoint")
        parser.set_defaults(**{action.dest: value})
    return parser.parse_args(given), earlier


def positive(text: str) -> int:
    """Read a number of steps."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def main(given: list[str] | None = None) -> None:
    """Train as the command line says."""
    args, earlier = parsed(given)
    options = TrainingOptions(**{name: getattr(args, name) for name in TrainingOptions.__dataclass_fields__})
    checkpoint = checkpoint_in(args.out, resumed=args.resume)
    with process_group(args.device) as group, log_on_stdout(group.first):
        if args.policy is None:
            args.policy = DEFAULT_POLICIES[group.device.type]
            if group.first and group.device.type == "cpu":
                others = ", ".join(name for name in sorted(PRESETS) if name != args.policy)
                print(f"policy: {args.policy}, for which a CPU is fast enough; choose others with --policy: {others}")
        dataset = open_for_training(
            args.dataset,
            file_format=args.format,
            rate_hz=args.rate_hz,
            window=Window(args.n_obs, args.horizon, args.action_offset, n_images=1),  # policies see the newest ones
            vision=args.vision,
            split=args.split,
        )
        info = data_info(dataset)
        if args.vision and not info.cameras:
            raise RoboCacheError("vision: the dataset has no images; leave --vision out, or give another dataset")
        loader = training_loader(
            dataset,
            info,
            args.batch_size,
            augmentation=Augmentation(noise={"proprio": args.proprio_noise}, shift=args.image_shift),
            workers=args.workers,
            device=group.device,
            cache=args.cache,
            seed=args.seed,
        )
        torch.manual_seed(args.seed)
        policy = make_policy(
            PolicyConfig(
                proprio=info.proprio,
                actions=info.actions,
                n_obs=args.n_obs,
                horizon=args.horizon,
                cameras=info.cameras,
                **PRESETS[args.policy],
            )
        )
        trainer = Trainer(policy, loader, options, group.device)
        if args.resume:
            resume(checkpoint, trainer, info)
        if group.first:
            print(f"{dataset!r}, {parameters(policy) / 1e6:.1f} million parameters, {group.size} x {group.device.type}")
            if changed := changes(earlier, args):
                print(f"continues at step {trainer.step:,} with {changed}")
        train(trainer, info, checkpoint, args, first=group.first)
        loader.close()


@contextmanager
def log_on_stdout(wanted: bool) -> Iterator[None]:
    """Print what the package logs: where the cache is, whether there is a CUDA graph, samples that are skipped."""
    log, handler = logging.getLogger("robocache_ros"), logging.StreamHandler(sys.stdout)
    level = log.level
    if wanted:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def changes(earlier: dict[str, Any], args: argparse.Namespace) -> str:
    """Return the arguments that are not those of the run that is resumed."""
    now = stored(args)
    return ", ".join(f"{name} {now[name]} (was {old})" for name, old in earlier.items() if now.get(name, old) != old)


def stored(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that a checkpoint has: all but the paths."""
    return {name: value for name, value in vars(args).items() if name not in ("dataset", "out", "resume")}


def train(trainer: Trainer, info: DataInfo, checkpoint: Path, args: argparse.Namespace, *, first: bool) -> None:
    """Make the steps that are left, with reports and checkpoints of the first process."""
    reported = TrainingProgress(trainer, args.report_every, args.out if args.tensorboard else None)
    try:
        with reported if first else nullcontext() as progress:
            while trainer.step < args.steps:
                loss = trainer.train_step()
                if progress is not None:
                    progress.update(loss)
                if trainer.step % args.save_every == 0 or trainer.step == args.steps:
                    save_checkpoint(checkpoint, trainer, info, stored(args), first=first)
    except KeyboardInterrupt:
        if first:
            what = f"{checkpoint} continues with --resume" if checkpoint.exists() else "there is no checkpoint yet"
            sys.stderr.write(f"interrupted at step {trainer.step:,}: {what}\n")
        raise
    if first:
        print(f"{checkpoint}: step {trainer.step:,} of {args.steps:,}")


if __name__ == "__main__":
    sys.exit(run("train_policy", main))
