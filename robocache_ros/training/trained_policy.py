"""A trained policy: from ticks in the units of the robot to actions in the units of the robot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from robocache_ros.engine.frames import FusedFrame
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ops import normalize_image
from robocache_ros.training.checkpoints import check_fit, read_checkpoint
from robocache_ros.training.policies.make_policy import Continued, Policy, make_policy
from robocache_ros.training.training_data import DataInfo


class TrainedPolicy:
    """Applies a policy with the normalisation of its training.

    On the frames of a node::

        policy = TrainedPolicy.load("run/checkpoint.pt")
        for frame in FusedSubscriber("fusion_node"):  # the node publishes windows of at least `n_obs` ticks
            actions = policy.act(frame)[0]  # (horizon, A)

    Attributes:
        policy: its weights are those of the average, if there is one.
        info: of the data that it was trained on.
        device: of the policy.
    """

    def __init__(self, policy: Policy, info: DataInfo) -> None:
        check_fit(policy.config, info)
        self.policy, self.info = policy.eval(), info
        self.device = next(policy.parameters()).device
        scale = {
            key: torch.tensor([each["mean"], each["std"]]).to(self.device) for key, each in info.statistics.items()
        }
        self._proprio, self._actions = scale["proprio"], scale["actions"]
        self._widths = torch.tensor(list(info.streams.values()))

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> TrainedPolicy:
        """Read a checkpoint.

        Errors:
            RoboCacheError: the file is not a checkpoint, or is damaged.
        """
        training, config, data, _ = read_checkpoint(path)
        policy = make_policy(config).to(device)
        policy.load_state_dict(training["policy"])
        if training["average_share"]:
            for parameter, average in zip(policy.parameters(), training["average"], strict=True):
                parameter.data.copy_(average / training["average_share"])
        return cls(policy, data)

    def observation(self, frame: FusedFrame | Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return (1, n_obs, P) float32 proprio and (1, n_obs, N) uint8 valid of a frame of the node or the engine.

        Args:
            frame: a tensor per stream: the last `n_obs` of its rows are observed, and (D,) is one row. `valid` is None
                for what is not a `FusedFrame`.

        Errors:
            RoboCacheError: the frame lacks a stream, or its window is shorter than `n_obs`.
        """
        tensors = _tensors_of(frame, self.info.streams)
        count = self.policy.config.n_obs
        rows = []
        for name, columns in self.info.streams.items():
            value = tensors[name]
            value = value.flatten(1) if value.ndim > 1 else value.reshape(1, -1)  # a window's samples are one row
            if value.shape[1] != columns:
                shape = tuple(tensors[name].shape)
                raise RoboCacheError(
                    f"{printable(name, 40)}: the frame has no such stream of {columns} columns, but {shape}; "
                    "use the spec of the training"
                )
            if len(value) < count:
                raise RoboCacheError(f"horizon: {len(value)} ticks in a frame; set horizon: {count} in the spec")
            rows.append(value[-count:])
        proprio = torch.cat(rows, dim=1)[None]
        if not isinstance(frame, FusedFrame):
            return proprio, None
        return proprio, torch.stack([frame.valid[name][-count:] for name in self.info.streams], dim=1)[None]

    def images(self, frame: FusedFrame | Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the images of a frame by the keys of `info.cameras`: (1, 1, H, W, 3), or (1, 1, C, H, W, 3), uint8.

        Args:
            frame: with (3, H, W) images, uint8 or in 0..1, as `FusedSubscriber` gives them.

        Errors:
            RoboCacheError: the frame lacks an image, one is normalised, or those of a key differ in size.
        """
        found = {}
        for key, cameras in self.info.cameras.items():
            if key not in self.info.images:
                raise RoboCacheError(f"images: the checkpoint does not name those of {printable(key, 40)}; train again")
            tensors = _tensors_of(frame, self.info.images[key])
            pictures = [_pixels(name, tensors[name]) for name in self.info.images[key]]
            if len({picture.shape for picture in pictures}) > 1:
                raise RoboCacheError(
                    f"images: those of {printable(key, 40)} differ in size; use the spec of the training"
                )
            together = key == "vision" or cameras > 1
            found[key] = (torch.stack(pictures) if together else pictures[0])[None, None]
        return found

    @torch.no_grad()
    def act(
        self,
        observation: FusedFrame | Mapping[str, Tensor] | Tensor,
        valid: Tensor | None = None,
        images: Mapping[str, Tensor] | None = None,
        noise: Tensor | None = None,
        prefix: Continued | None = None,
    ) -> Tensor:
        """Return (B, horizon, A) float32 actions.

        Args:
            observation: a frame with the streams and images of the training, in any order, and with others, for which
                B is 1 and `valid` and `images` are those of the frame; or (B, n_obs, P) float32 proprio.
            valid: (B, n_obs, N) of the streams in `info.streams`; None: all are. Invalid values count as the mean, as
                in training.
            images: (B, T, H, W, 3) uint8, or (B, T, C, H, W, 3), by the keys of `info.cameras`; the last T is used.
            noise: see `Policy.predict`.
            prefix: see `Policy.predict`; its actions are in the units of the robot, as those returned.

        Errors:
            RoboCacheError: a frame lacks a stream, a value is not of its shape, a valid one is infinite or not a
                number, or an action would be.
        """
        if isinstance(observation, Tensor):
            proprio = observation
        else:
            (proprio, valid), images = self.observation(observation), self.images(observation)
        config = self.policy.config
        shape, streams = (len(proprio), config.n_obs, config.proprio), len(self._widths)
        _check_shape("proprio", proprio, shape)
        mean, std = self._proprio
        scaled = (proprio.to(mean.device) - mean) / std
        if valid is not None:
            _check_shape("valid", valid, (*shape[:2], streams))
            there = torch.repeat_interleave(valid.to(mean.device) > 0, self._widths.to(mean.device), dim=2)
            scaled = scaled.masked_fill(~there, 0)
        observed = {"proprio": scaled}
        for key in self.info.cameras:
            if images is None or key not in images:
                raise RoboCacheError(f"images: no {key}; give the images that the policy was trained on")
            _check_images(key, images[key], shape[0], config.cameras[key])
            channels_first = images[key].to(mean.device).movedim(-1, -3).contiguous()
            observed[key] = normalize_image(channels_first, "imagenet", torch.float32)
        mean, std = self._actions
        if prefix is not None:
            prefix = prefix._replace(actions=(prefix.actions.to(mean.device) - mean) / std)
        actions: Tensor = self.policy.predict(observed, noise, prefix).float() * std + mean
        finite = torch.stack([scaled.isfinite().all(), actions.isfinite().all()]).tolist()  # waits for the device once
        for name, is_finite in zip(("proprio", "actions"), finite, strict=True):
            if not is_finite:
                raise RoboCacheError(f"{name}: a value is infinite or not a number; stop, and check where it is from")
        return actions


def _tensors_of(frame: FusedFrame | Mapping[str, Tensor], names: Iterable[str]) -> Mapping[str, Tensor]:
    """The tensors of a frame, among them those of some names."""
    tensors = frame.tensors if isinstance(frame, FusedFrame) else frame
    if missing := [name for name in names if name not in tensors]:
        raise RoboCacheError(
            f"{printable(', '.join(missing), 60)}: the frame has no such stream; use the spec of the training, "
            "and name its images in images= of FusedSubscriber"
        )
    for name in names:
        if not isinstance(tensors[name], Tensor):
            raise RoboCacheError(f"{printable(name, 40)}: a {type(tensors[name]).__name__}; give a torch tensor")
    return tensors


def _pixels(name: str, image: Tensor) -> Tensor:
    """The (H, W, 3) uint8 pixels of a (3, H, W) image; of one in 0..1 they are exact."""
    if image.ndim != 3 or len(image) != 3 or not image.numel():
        raise RoboCacheError(
            f"{printable(name, 40)}: an image of shape {tuple(image.shape)}; wait for one of (3, H, W)"
        )
    if image.dtype != torch.uint8:
        image = (image.float() * 255).round()
        if not (image.min() >= 0 and image.max() <= 255):
            raise RoboCacheError(
                f"{printable(name, 40)}: the image is not in 0..1; use FusedSubscriber without normalize"
            )
    return image.movedim(0, -1).to(torch.uint8)


def _check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(value.shape) != shape:
        raise RoboCacheError(f"{name}: has shape {tuple(value.shape)}; give {shape}, as in training")


def _check_images(key: str, images: Tensor, count: int, cameras: int) -> None:
    """Refuse what is not (B, T, H, W, 3) uint8 images of one camera, or (B, T, C, H, W, 3) of several."""
    shape = tuple(images.shape)
    several = len(shape) == 6
    if (
        images.dtype != torch.uint8
        or len(shape) not in (5, 6)
        or (shape[0], shape[-1], shape[2] if several else 1) != (count, 3, cameras)
        or not images.numel()
    ):
        kind = f"{count}, ticks, {f'{cameras}, ' * several}height, width, 3"
        raise RoboCacheError(f"{printable(key, 40)}: {shape} {images.dtype}; give ({kind}) torch.uint8")
