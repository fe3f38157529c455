"""Checkpoints: one file with the state of the training, the shape of the policy, and what it knows of its data."""

from __future__ import annotations

import hashlib
import io
import math
import os
import pickletools
import stat
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.training.policies.make_policy import make_policy
from robocache_ros.training.policies.policy_config import PolicyConfig
from robocache_ros.training.trainer import Trainer, check_state
from robocache_ros.training.training_data import DataInfo

NAME = "checkpoint.pt"
DIGEST = b"sha256:"  # begins the comment of the archive: the digest of the archive as it is without a comment
COMMENT_BYTES = len(DIGEST) + 64
END_OF_ARCHIVE = b"PK\5\6", 22  # its signature and its size; the last two bytes are the length of the comment
CHUNK_BYTES = 1 << 20
# All that the pickle in a checkpoint refers to. `torch.load(weights_only=True)` admits more, such as `bytearray`.
GLOBALS = {"torch._utils _rebuild_tensor_v2", "collections OrderedDict"} | {
    f"torch {kind}Storage" for kind in ("Float", "Double", "Long", "Int", "Byte", "Bool")
}
PLAIN = (str, int, float, bool, type(None))


class Checkpoint(NamedTuple):
    """The contents of a checkpoint: what `Trainer.state_dict` returned, what it belongs to, and how it was started."""

    training: dict[str, Any]
    policy: PolicyConfig
    data: DataInfo
    arguments: dict[str, Any]


def checkpoint_in(folder: Path, *, resumed: bool) -> Path:
    """Return the path of a run's checkpoint, and create the folder of a new run.

    Errors:
        RoboCacheError: a run that is resumed has no checkpoint, a new one has, or the folder cannot be created.
    """
    path = folder / NAME
    try:
        if path.exists() != resumed:
            raise RoboCacheError(
                f"{printable(path)}: does not exist; train without --resume"
                if resumed
                else f"{printable(path)}: exists; continue it with --resume, or give another --out"
            )
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RoboCacheError(f"{printable(folder)}: {error.strerror}; give another --out") from None
    return path


def save_checkpoint(
    path: str | Path,
    trainer: Trainer,
    info: DataInfo,
    arguments: Mapping[str, Any] | None = None,
    *,
    first: bool = True,
) -> None:
    """Write a checkpoint. A kill at any time leaves the earlier one, and so does an error.

    Args:
        path: the file, which is replaced.
        trainer: between two steps.
        info: of the data.
        arguments: of the program, numbers and texts by their names, which a run that is resumed uses again.
        first: whether this process writes; with several processes all of them call it.

    Errors:
        RoboCacheError: a weight is infinite or not a number, or the file cannot be written.
    """
    path = Path(path)
    if not torch.stack([each.detach().isfinite().all() for each in trainer.policy.parameters()]).all():
        raise RoboCacheError(
            f"{printable(path)}: not written, weights at step {trainer.step} are not finite; lower the learning rate"
        )
    state = trainer.state_dict()  # from all processes
    if not first:
        return
    partial = path.with_name(f"{path.name}.partial")
    config = {**asdict(trainer.policy.config), "cameras": dict(trainer.policy.config.cameras)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _HashedFile(partial) as file:
            contents = {"training": state, "policy": config, "data": asdict(info), "arguments": dict(arguments or {})}
            torch.save(contents, file)
            comment = _comment(file.digest.hexdigest().encode())
            file.seek(-2, os.SEEK_END)
            file.write(comment)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # torch raises the latter, after the former, if a disk is full
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        reason = printable(_os_error(error) or error)
        raise RoboCacheError(
            f"{printable(path)}: cannot be written ({reason}); free some space, an earlier one is kept"
        ) from error


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Return the contents of a checkpoint, with its tensors on the CPU. No code in it can run.

    The file is verified before it is read: its SHA-256, or the CRCs of a file that something else has written. Shapes
    and types are verified before the policy is made.

    Errors:
        RoboCacheError: the file is missing, damaged, or not a checkpoint.
    """
    try:
        with _open_file(path) as file:
            nbytes = file.seek(0, os.SEEK_END)
            _check_archive(file, nbytes)
            file.seek(0)
            return _checked(torch.load(file, map_location="cpu", weights_only=True), nbytes)
    except OSError as error:
        raise RoboCacheError(f"{printable(path)}: {error.strerror}; give a checkpoint of train_policy") from None
    except RoboCacheError as error:
        reason = str(error).partition("; ")[0].removeprefix("checkpoint: ")
    except Exception as error:  # of many types, by what is damaged
        reason = f"{type(error).__name__}: {error}"
    raise RoboCacheError(
        f"{printable(path, 50)}: damaged, or not a checkpoint ({printable(reason, 90)}); give another one"
    ) from None


def check_fit(config: PolicyConfig, info: DataInfo) -> None:
    """Refuse a policy that does not read or write what the data has.

    Errors:
        RoboCacheError: it has other columns or cameras.
    """
    for name in ("proprio", "actions"):
        if getattr(config, name) != getattr(info, name):
            raise RoboCacheError(
                f"policy: {getattr(config, name)} columns of {name}, the data has {getattr(info, name)}; use its own"
            )
    if dict(config.cameras) != dict(info.cameras):
        raise RoboCacheError(
            f"policy: cameras {printable(dict(config.cameras), 40)}, the data has {printable(info.cameras, 40)}"
            "; use its own"
        )


def resume(path: str | Path, trainer: Trainer, info: DataInfo) -> None:
    """Continue where a checkpoint was written.

    Args:
        path: the file.
        trainer: a new one.
        info: of the data.

    Errors:
        RoboCacheError: the checkpoint is of another policy, dataset or number of processes.
    """
    found = read_checkpoint(path)
    for what, before, here in (("dataset", found.data, info), ("policy", found.policy, trainer.policy.config)):
        for field in sorted(fields(here), key=lambda field: field.name == "statistics"):  # the others explain these
            old, new = getattr(before, field.name), getattr(here, field.name)
            is_optional = field.default is not MISSING or field.default_factory is not MISSING
            if field.name == "samples" or (is_optional and old in ({}, None)):  # as decoded here; of an earlier version
                continue
            if not _alike(old, new):
                change = "differ" if isinstance(old, dict) else f"was {printable(old, 20)}, is {printable(new, 20)}"
                raise RoboCacheError(
                    f"{printable(path)}: of another {what}: {field.name} {change}; use the same arguments"
                )
    trainer.load_state_dict(found.training)


class _HashedFile(io.BufferedWriter):
    """A file that is written from its first byte to its last, and the digest of what was written so far."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return super().write(data)


def _comment(hexdigest: bytes) -> bytes:
    """The end of an archive from the length of its comment on."""
    return COMMENT_BYTES.to_bytes(2, "little") + DIGEST + hexdigest


def _open_file(path: str | Path) -> BinaryIO:
    """Open a regular file: opening a pipe would wait for its writer."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise RoboCacheError("not a regular file")
    return open(path, "rb")


def _check_archive(file: BinaryIO, nbytes: int) -> None:
    """Verify all bytes of an archive, and that reading it takes no more memory than the file has bytes."""
    signature, size = END_OF_ARCHIVE
    file.seek(-min(nbytes, COMMENT_BYTES + 2), os.SEEK_END)
    end = file.read()
    own = end[2:].startswith(DIGEST)
    if own and end != _comment(_digest(file, nbytes - len(end))):
        raise RoboCacheError("its bytes are not those that were written")
    if not own and end[-size:][: len(signature)] + end[-2:] != signature + bytes(2):
        raise RoboCacheError("not a file of torch.save")
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise RoboCacheError("it is compressed")
        if sum(entry.file_size for entry in entries) > nbytes:
            raise RoboCacheError("its entries are larger than the file")
        if not own and (wrong := archive.testzip()) is not None:
            raise RoboCacheError(f"wrong CRC of {wrong}")
        pickled = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
        if len(pickled) != 1:
            raise RoboCacheError(f"{len(pickled)} pickles in it")
        for operation, argument, _ in pickletools.genops(archive.read(pickled[0])):
            named = operation.name in ("GLOBAL", "INST")
            if operation.name == "STACK_GLOBAL" or (named and argument not in GLOBALS):
                raise RoboCacheError(f"{argument or operation.name} in it")


def _digest(file: BinaryIO, nbytes: int) -> bytes:
    """The SHA-256 of an archive without its comment; `nbytes` come before the comment's length."""
    digest = hashlib.sha256()
    file.seek(0)
    while nbytes > 0 and (part := file.read(min(nbytes, CHUNK_BYTES))):
        digest.update(part)
        nbytes -= len(part)
    digest.update(bytes(2))
    return digest.hexdigest().encode()


def _checked(found: Any, nbytes: int) -> Checkpoint:
    """Return the contents of a checkpoint of `nbytes` bytes, each of its type and shape.

    Errors:
        RoboCacheError: one is not.
    """
    _check_names("checkpoint", found, set(Checkpoint._fields), set(Checkpoint._fields))
    for kind, name in ((PolicyConfig, "policy"), (DataInfo, "data")):
        known = {each.name for each in fields(kind)}
        needed = {each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING}
        _check_names(name, found[name], needed, known)
    policy, data = PolicyConfig(**found["policy"]), DataInfo(**found["data"])
    check_fit(policy, data)
    arguments = found["arguments"]
    if not isinstance(arguments, dict) or not all(type(each) in PLAIN for each in (*arguments, *arguments.values())):
        raise RoboCacheError("arguments: not numbers and texts by their names")
    with torch.device("meta"):  # no memory, whatever the sizes are
        expected = make_policy(policy)
    training = check_state(found["training"], expected, nbytes)
    return Checkpoint(training, policy, data, dict(arguments))


def _check_names(where: str, found: Any, needed: set[str], known: set[str]) -> None:
    if not isinstance(found, dict):
        raise RoboCacheError(f"{where}: a {type(found).__name__}, not names and values")
    if missing := needed - set(found):
        raise RoboCacheError(f"{where}: no {min(missing)}")
    if unknown := set(found) - known:
        raise RoboCacheError(f"{where}: unknown {printable(min(map(str, unknown)), 30)}")


def _alike(old: Any, new: Any) -> bool:
    """Whether two values are equal; statistics that are computed again may differ by rounding."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return list(old) == list(new) and all(_alike(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(_alike(a, b) for a, b in zip(old, new, strict=True))
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-9)
    return bool(old == new)


def _os_error(error: BaseException | None) -> str | None:
    """What the system said, if an error comes from there."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return None if error is None else error.strerror
