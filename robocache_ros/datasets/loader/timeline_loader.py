"""The loader: batches of a dataset in a reproducible order, read by worker processes, on the device of the training."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robocache_ros.datasets.loader.augmentation import Augmentation, Finishing, Normalisation
from robocache_ros.datasets.loader.batch import RAGGED, Batch, Skipped
from robocache_ros.datasets.loader.cache import Part, chunks_of, filled, joined
from robocache_ros.datasets.loader.order import (
    MIX,
    BatchOrder,
    Epochs,
    Int64,
    Rest,
    Samples,
    permutation,
    philox,
    stream_widths,
)
from robocache_ros.datasets.loader.packing import ABSENT_STAMP_NS, is_time
from robocache_ros.datasets.loader.prefetch import OnDevice, Prefetcher
from robocache_ros.datasets.loader.reading import BatchReader, IndexedEpisodes, depends_on_epoch
from robocache_ros.datasets.public_datasets import ALL_MODALITIES, RTXDataset, dataset_path
from robocache_ros.datasets.statistics import statistics_of
from robocache_ros.datasets.timeline_dataset import Window
from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.ops.image.nvjpeg import library

CACHES = ("none", "auto", "device", "host")
ON_ERROR = ("raise", "skip")
ALIGN_ON = ("auto", "device", "workers")
JPEG = ("cpu", "gpu")
MAX_WORKERS = 1024
MAX_PREFETCH = 4096
MAX_NAMED = 1000  # skipped samples whose reason is kept
MAX_COUNT = 2**53  # of epochs and samples in a state
UNCACHED = 16  # batches before a cache is filled automatically: the training allocates its memory of the GPU first
_LOG = logging.getLogger("robocache_ros.datasets.loader")


def check_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """Return a known value.

    Errors:
        RoboCacheError: it is unknown.
    """
    if value not in choices:
        raise RoboCacheError(f"{name}: {printable(value, 30)!r} is not one of {', '.join(choices)}; choose one of them")
    return value


@dataclass(frozen=True)
class LoaderOptions:
    """What few users of a `TimelineLoader` change.

    Attributes:
        windows: (ticks, stride): cut episodes into windows; None: whole items.
        ragged: `pad` samples of different lengths to the longest, or `concat` them.
        image_dtype: convert images on the device to (..., 3, H, W) of this dtype; None: they stay (..., H, W, 3) uint8.
        image_normalize: mean and std of the converted images, as in `convert_image`; None: pixels / 255.
        jpeg: decoder of jpeg files: `cpu`, or `gpu`: nvJPEG, which is faster and differs by a few counts.
        align_on: `device`: the workers send the streams as they are, and one operation aligns the batch; `workers`:
            they align each sample; `auto`: the device if it is a GPU and the order has no runs. The bits are the same.
        prefetch: batches that workers read ahead, also of the next epoch; None: two per worker, and at least two.
        max_batch_bytes: limit of a batch in host memory. There are `prefetch` + 2 such blocks, and one in each worker.
        rank, world_size: of this process; None: those of torch.distributed if it is initialised, else 0 of 1.

    Errors:
        RoboCacheError: a value is unknown or out of range.
    """

    windows: tuple[int, int] | None = None
    ragged: str = "pad"
    image_dtype: torch.dtype | None = None
    image_normalize: Any = None
    jpeg: str = "cpu"
    align_on: str = "auto"
    prefetch: int | None = None
    max_batch_bytes: int = 2**30
    rank: int | None = None
    world_size: int | None = None

    def __post_init__(self) -> None:
        for name, choices in (("ragged", RAGGED), ("jpeg", JPEG), ("align_on", ALIGN_ON)):
            check_choice(name, getattr(self, name), choices)
        if self.jpeg == "gpu" and self.align_on == "workers":
            raise RoboCacheError("jpeg: gpu needs align_on='device': workers align decoded images; use jpeg='cpu'")
        if self.prefetch is not None and not 1 <= self.prefetch <= MAX_PREFETCH:
            raise RoboCacheError(
                f"prefetch: {self.prefetch} is not in 1..{MAX_PREFETCH}; give the batches that are read ahead"
            )
        if (self.rank is None) != (self.world_size is None):
            raise RoboCacheError("rank: rank and world_size belong together; give both, or neither")

    def aligns_on(self, device: torch.device) -> bool:
        """Return whether batches are aligned on their device.

        Errors:
            RoboCacheError: nvJPEG is wanted and missing, or the device is not a GPU.
        """
        if self.jpeg == "gpu":
            if device.type != "cuda":
                raise RoboCacheError("jpeg: gpu needs a CUDA device; use jpeg='cpu'")
            library()
        return self.align_on == "device" or (self.align_on == "auto" and device.type == "cuda")


def ranks(options: LoaderOptions) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks; those of torch.distributed where none are given."""
    if options.rank is not None and options.world_size is not None:
        return options.rank, options.world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def find_device(device: str | torch.device) -> torch.device:
    """Return the device of the batches, a GPU with its index.

    Errors:
        RoboCacheError: there is no such device.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise RoboCacheError(f"device: {printable(error)}; use cpu, cuda, cuda:<index> or auto") from None
    if found.type not in ("cpu", "cuda"):
        raise RoboCacheError(f"device: {found.type} is not supported; use cpu, cuda, cuda:<index> or auto")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise RoboCacheError("device: there is no CUDA device; use device='cpu' or 'auto'")
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


class TimelineLoader:
    """Batches of a map-style dataset. Iterating once is one epoch; iterating again is the next one.

    The order and the augmentations are a pure function of the seed, the epoch, the length of the dataset and the rank.
    The number of workers, a worker that dies and a resume change nothing.

    Args:
        dataset: such as a `TimelineDataset`; picklable if there are workers.
        batch_size: samples of a batch.
        shuffle: in a random order, another in each epoch; `ShuffledRuns` for videos, which are read in sequence.
        seed: of the order and the augmentations.
        drop_last: leave out the last samples if they do not fill a batch of each rank.
        workers: processes that read; 0: this process does.
        device: of the batches: cpu, cuda, cuda:<index>, or auto.
        cache: keep the dataset, aligned: on the `device`, on the `host`, on both as far as it fits (`auto`), or `none`.
            One pass fills it, for `auto` and a GPU after 32 batches. Each tick is kept once, however many windows of
            the dataset have it.
        statistics: mean and std by key, by which valid values are normalised; `auto`: as of `dataset_statistics`.
        augmentation: random changes of the samples.
        on_error: `raise` on a sample that cannot be read, or `skip` it: `skipped` counts them, and
            `skipped_samples` has the reasons.
        options: windows, images, decoding, memory and ranks; see `LoaderOptions`.

    A batch has the keys of the dataset's items with B samples in front, texts as lists, and
        length: (B,) int64 ticks; index: (B,) int64, the number of each sample;
        padding: (B, T) bool for `pad`; offsets: (B + 1,) int64 for `concat`, which joins the ticks of all samples.

    Errors:
        RoboCacheError: an argument is wrong; while iterating, a sample that cannot be read.
    """

    def __init__(
        self,
        dataset: IndexedEpisodes,
        batch_size: int,
        *,
        shuffle: bool | ShuffledRuns = False,
        seed: int = 0,
        drop_last: bool = False,
        workers: int = 0,
        device: str | torch.device = "cpu",
        cache: str = "none",
        statistics: Mapping[str, Mapping[str, Any]] | str | None = None,
        augmentation: Augmentation | None = None,
        on_error: str = "raise",
        options: LoaderOptions = LoaderOptions(),
    ) -> None:
        check_choice("on_error", on_error, ON_ERROR)
        if not 0 <= workers <= MAX_WORKERS:
            raise RoboCacheError(f"workers: {workers} is not in 0..{MAX_WORKERS}; give the number of processes")
        self.dataset, self.batch_size, self.device, self.options = dataset, batch_size, find_device(device), options
        self.cache = check_choice("cache", cache, CACHES)
        if depends_on_epoch(dataset) and cache != "none":
            if cache != "auto":
                raise RoboCacheError("cache: the dataset has other items in each epoch; use cache='none'")
            self.cache = cache = "none"
            _LOG.info("cache: none, because the dataset has other items in each epoch")
        self.skipped = 0  # samples that were left out, in all epochs
        self.skipped_samples: dict[int, str] = {}  # their numbers, and why; the first 1,000
        self._samples = Samples(dataset, options.windows, skip=on_error == "skip")
        for item, reason in self._samples.unreadable.items():
            self._skip(item, reason)
        if not len(self._samples):
            raise RoboCacheError("dataset: it has no samples; check its path, split, tasks and windows")
        self._shuffle = shuffle
        self._order = make_order(shuffle, self._samples, batch_size, seed, drop_last, *ranks(options))
        self._epochs = Epochs(self._order, self._samples)
        statistics = statistics_of(dataset, statistics, on_error, workers)
        images = options.image_dtype, options.image_normalize
        self._finishing = Finishing(Normalisation(statistics), augmentation, seed, *images)
        self._widths = stream_widths(dataset) if statistics or augmentation else {}
        self._epoch, self._position = 0, 0  # of the next batch
        self._resumed, self._filled = False, False
        self._iterating: Any = lambda: None  # the iterator of the epoch, weakly
        self._cached: list[Part] = []
        self._uncached = UNCACHED if self.device.type == "cuda" else 0
        raw, files = options.aligns_on(self.device), options.jpeg == "gpu"
        if isinstance(self._order, RunOrder) and options.align_on == "auto" and not files:
            raw = False  # a worker aligns the windows of a run together, and the device would do so run by run
        reader = BatchReader(dataset, on_error == "skip", raw, files, chunks_of(dataset, cache))
        prefetch = max(2 * workers, 2) if options.prefetch is None else options.prefetch
        self._prefetcher = Prefetcher(reader, workers, prefetch, self.device, options.max_batch_bytes)
        self._workers = workers
        gathers = self.device.type == "cuda" and (self.cache != "none" or isinstance(self._order, RunOrder))
        self._stream: Any = torch.cuda.Stream(self.device) if gathers else None  # type: ignore[no-untyped-call]
        self._close = weakref.finalize(self, self._prefetcher.close)

    def __len__(self) -> int:
        """Return the batches of an epoch of this rank."""
        return len(self._order)

    def __repr__(self) -> str:
        slots = self._prefetcher.slots
        now = sum(slot.nbytes for slot in slots) / 2**20
        return (
            f"TimelineLoader({self.dataset!r}, batch_size={self.batch_size}, shuffle={self._shuffle}, "
            f"seed={self._order.seed}, workers={self._workers}, device={self.device}, cache={self.cache}, "
            f"rank {self._order.rank} of {self._order.world_size}, {len(self)} batches, "
            f"host memory {now:.1f} MiB in {len(slots)} blocks of at most {self.options.max_batch_bytes / 2**20:g} MiB)"
        )

    def __enter__(self) -> TimelineLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over the batches of the next epoch, or over the rest of the one that was resumed."""
        if self._order.world_size == 1 and ranks(self.options)[1] > 1:  # all ranks would see the same samples
            raise RoboCacheError(
                "rank: torch.distributed was initialised after the loader was created; create it afterwards, in "
                "Lightning in train_dataloader"
            )
        running = self._iterating()
        if running is not None:
            running.close()
        if self._position and not self._resumed:  # the last epoch was left before its end
            self._epoch, self._position = self._epoch + 1, 0
        iterator = self._iterate()
        self._iterating = weakref.ref(iterator)
        return iterator

    def _iterate(self) -> Iterator[dict[str, Any]]:
        self._resumed = False  # not before: an iterator that is not used leaves no epoch
        epoch, first = self._epoch, self._position
        delivered = first > 0
        for position, (batch, skipped) in enumerate(self._ahead(self._found(epoch, first)), start=first + 1):
            self._position = position
            for number, reason in skipped:
                self._skip(number, reason)
            if batch is not None:
                delivered = True
                yield batch.output(self.options.ragged)
        self._epoch, self._position = epoch + 1, 0
        if len(self) and not delivered:
            number, reason = next(iter(self.skipped_samples.items()))
            raise RoboCacheError(f"epoch {epoch}: no sample can be read, the first because sample {number}: {reason}")

    def _ahead(self, found: Iterator[tuple[Batch | None, Skipped]]) -> Iterator[tuple[Batch | None, Skipped]]:
        """Yield the same. On a GPU, what is put together there is a batch ahead, while the training uses the last."""
        if self._stream is None:
            yield from found
            return
        ready: tuple[Batch | None, Skipped] | None = None
        while True:
            current = torch.cuda.current_stream(self.device)
            event = self._stream.record_event()  # of the batch that is ready
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                following = next(found, None)
            if ready is not None:
                current.wait_event(event)
                if ready[0] is not None:
                    for tensor in (*ready[0].tensors.values(), ready[0].padding()):
                        tensor.record_stream(current)
                yield ready
            if following is None:
                return
            ready = following

    def _found(self, epoch: int, first: int) -> Iterator[tuple[Batch | None, Skipped]]:
        """Yield batches of an epoch, None for one without a sample that can be read, and the samples that it lacks."""
        if self.cache == "auto" and not self._filled:
            for found in islice(self._served(epoch, first, self._uncached), self._uncached):
                self._uncached, first = self._uncached - 1, first + 1
                yield found
            if self._uncached:
                return
        if self.cache != "none" and not self._filled:
            self._cached = filled(self.cache, self.dataset, self._prefetcher, self._widths, self.device)
            self._epochs.keep(self._cached[-1].stop if self._cached else 0)
            self._filled = True
        yield from self._served(epoch, first)

    def _served(self, epoch: int, first: int, most: int | None = None) -> Iterator[tuple[Batch | None, Skipped]]:
        """Yield what `_found` yields, from memory as far as it is there. `most` batches are asked for, None: all."""
        rest = self._epochs.rest(epoch, first)
        memory = [
            part.batches.batches([n[(n >= part.begin) & (n < part.stop)] for n in rest.batches], self._samples)
            for part in self._cached
        ]
        if memory and self._cached[-1].stop >= len(self._samples):
            sources = memory
        elif memory:
            sources = [self._read(epoch, first, rest, _as_it_is), *memory]
        else:
            plain = not isinstance(self._order, RunOrder)
            for batch, skipped in self._read(epoch, first, rest, self._finish if plain else _as_it_is, most):
                yield batch if plain else batch and self._finish(batch), skipped
            return
        for numbers, *found in zip(rest.batches, *sources, strict=True):
            parts = [batch for batch, _ in found if batch is not None]
            yield self._finish(joined(parts, numbers)) if parts else None, sum((each for _, each in found), ())

    def _read(
        self, epoch: int, first: int, rest: Rest, finish: Callable[[Batch], Batch], most: int | None = None
    ) -> Iterator[tuple[Batch | None, Skipped]]:
        """Yield the samples of each batch that are not in memory, as workers read them."""
        runs = isinstance(self._order, RunOrder)
        requests = islice(self._epochs.requests(epoch, first), None if runs else most)  # a batch needs several runs
        found = self._prefetcher.batches(requests, len(rest.reads), self._widths, finish)
        if runs:
            yield from mixed(rest.left, found)
            return
        for numbers in rest.left:
            item = next(found) if len(numbers) else None
            yield (None, ()) if item is None else (item.batch, item.description.skipped)
        next(found, None)  # the workers read the next epoch

    def _finish(self, batch: Batch) -> Batch:
        return self._finishing.apply(batch, self._epoch)

    def _skip(self, number: int, reason: str) -> None:
        self.skipped += 1
        if number not in self.skipped_samples and len(self.skipped_samples) < MAX_NAMED:
            self.skipped_samples[number] = reason
            _LOG.warning("skipped sample %d: %s", number, reason)

    @property
    def replaced_workers(self) -> int:
        """Worker processes that died and were replaced."""
        return self._prefetcher.pool.replaced

    @property
    def worker_pids(self) -> list[int]:
        """The worker processes."""
        return list(self._prefetcher.pool.pids)

    def set_epoch(self, epoch: int) -> None:
        """Continue with another epoch, from its start. The epoch that is already next keeps its position."""
        if epoch != self._epoch:
            self._epoch, self._position, self._resumed = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the next batch in the sequence; batches that were only prefetched do not count."""
        return {**self._identity(), "epoch": self._epoch, "position": self._position, "skipped": self.skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called.

        Errors:
            RoboCacheError: the state is of a loader with another order, or not a state. Nothing is changed then.
        """
        if not isinstance(state, Mapping):
            raise RoboCacheError(f"state: a {type(state).__name__}; use what state_dict of this loader returned")
        for key, value in self._identity().items():
            found = state.get(key)
            if type(found) not in (int, bool, list, type(None)) or found != value:
                raise RoboCacheError(f"state: {key} is {printable(found, 40)}, here {value}; use the same arguments")
        for key, most in (("epoch", MAX_COUNT), ("position", len(self)), ("skipped", MAX_COUNT)):
            found = state.get(key)
            if type(found) is not int or not 0 <= found <= most:
                text = f"state: {key} {printable(found, 40)} is not a whole number from 0 to {most:,}"
                raise RoboCacheError(f"{text}; use the state of this loader")
        self._epoch, self._position, self.skipped = state["epoch"], state["position"], state["skipped"]
        self._resumed = True

    def _identity(self) -> dict[str, Any]:
        """Return all that the order depends on."""
        order = self._order
        names = ("length", "batch_size", "shuffle", "seed", "drop_last", "rank", "world_size")
        return {"version": 1, **{name: getattr(order, name) for name in names}, "runs": order.mixing}

    def close(self) -> None:
        """End the workers and free the memory, as the end of `with TimelineLoader(...) as loader:` does.

        The loader is of no use afterwards.
        """
        self._close()


def _as_it_is(batch: Batch) -> Batch:
    return batch


MAX_BUFFER = 2**20
MAX_SAMPLES = 2**31


@dataclass(frozen=True)
class ShuffledRuns:
    """Runs of consecutive samples in a random order, each sample mixed with others of a buffer.

    Attributes:
        length: samples of a run at most; a run does not leave its episode.
        buffer: a sample is moved back by up to so many places. So many samples, and those of the runs that are being
            read, are in memory.
    """

    length: int = 32
    buffer: int = 512

    def __post_init__(self) -> None:
        if not (1 <= self.length <= self.buffer <= MAX_BUFFER):
            raise RoboCacheError(f"shuffle: {self}: give 1 <= length <= buffer <= {MAX_BUFFER:,}")


@dataclass(frozen=True)
class RunOrder(BatchOrder):
    """A `BatchOrder` of shuffled runs. Each rank has other runs."""

    runs: ShuffledRuns = ShuffledRuns()
    ends: Any = ()  # (N,) the number after the last sample of each episode

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length > MAX_SAMPLES:
            raise RoboCacheError(
                f"shuffle: {self.length:,} samples; at most {MAX_SAMPLES:,} are mixed; use shuffle=True"
            )

    @property
    def mixing(self) -> list[int] | None:
        """Length of the runs, and size of the buffer."""
        return [self.runs.length, self.runs.buffer]

    def share(self, epoch: int) -> Int64:
        """The samples of this rank in their order, (n,) int64."""
        numbers, _ = self._in_runs(epoch)
        moved = philox(self.seed, epoch, MIX, self.rank).random_raw(len(numbers)) >> np.uint64(32)
        places = np.arange(len(numbers), dtype=np.uint64) << np.uint64(32)
        return numbers[np.argsort(places + moved * np.uint64(self.runs.buffer), kind="stable")]

    def reads(self, epoch: int, batches: Sequence[Int64]) -> Sequence[Int64]:
        """The runs of the samples of some batches, (n,) each, in the order in which they are needed."""
        if not batches:
            return []
        numbers, runs = self._in_runs(epoch)
        there = np.isin(numbers, np.concatenate(batches))
        numbers, runs = numbers[there], runs[there]
        return np.split(numbers, np.flatnonzero(np.diff(runs)) + 1)

    def _in_runs(self, epoch: int) -> tuple[Int64, Int64]:
        """The samples of this rank in the order in which they are read, and the run of each, (n,) int64."""
        ends = np.unique(np.append(np.asarray(self.ends, np.int64), self.length))
        begins = np.concatenate([[0], ends[:-1]])
        counts = -(-(ends - begins) // self.runs.length)  # runs of each episode
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = np.repeat(begins, counts) + within * self.runs.length
        lengths = np.minimum(starts + self.runs.length, np.repeat(ends, counts)) - starts
        order = permutation(len(starts), self.seed, epoch)
        starts, lengths = starts[order], lengths[order]
        runs = np.repeat(np.arange(len(starts)), lengths)
        numbers = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        # The ranks have adjacent parts, as large as those of a `BatchOrder`.
        sizes = [-(-(self.used - rank) // self.world_size) for rank in range(self.rank + 1)]
        mine = slice(sum(sizes[:-1]), sum(sizes))
        return numbers[mine], runs[mine]


def make_order(
    shuffle: bool | ShuffledRuns,
    samples: Samples,
    batch_size: int,
    seed: int,
    drop_last: bool,
    rank: int,
    world_size: int,
) -> BatchOrder:
    """Return the order of a loader; the arguments are those of `TimelineLoader`."""
    plain = (len(samples), batch_size, bool(shuffle), seed, drop_last, rank, world_size)
    if isinstance(shuffle, ShuffledRuns):
        return RunOrder(*plain, shuffle, samples.episode_ends())
    return BatchOrder(*plain)


ROW_BYTES = 1 << 16  # of larger tensors, such as images, a copy would take longer than a gather saves


class SamplePool:
    """Samples in host memory, of the shapes of a first batch. It grows to the samples that wait at one time.

    Attributes:
        keys: of all tensors of a batch, in their order.
        tensors: (N, ...) by key, those whose rows are small.
    """

    def __init__(self, batch: Batch) -> None:
        self.keys = tuple(batch.tensors)
        self.tensors = {
            key: tensor.new_empty((0, *tensor.shape[1:]))
            for key, tensor in batch.tensors.items()
            if not tensor.is_cuda and tensor[:1].numel() * tensor.element_size() <= ROW_BYTES
        }
        self._length = batch.lengths[0]
        self._free: list[int] = []
        self._size = 0

    def add(self, batch: Batch) -> list[int] | None:
        """Copy the small tensors of a batch, and return the slots of its samples; None if it has other shapes."""
        if any(length != self._length for length in batch.lengths) or not self._fits(batch.tensors):
            return None
        count = len(batch.samples)
        if len(self._free) < count:
            self._grow(max(count, self._size))
        slots, self._free = self._free[-count:], self._free[:-count]
        index = torch.tensor(slots)
        for key, tensor in self.tensors.items():
            tensor.index_copy_(0, index, batch.tensors[key])
        return slots

    def free(self, slots: Sequence[int]) -> None:
        """Reuse slots."""
        self._free.extend(slots)

    def _fits(self, tensors: dict[str, Tensor]) -> bool:
        return tuple(tensors) == self.keys and all(
            tensors[key].shape[1:] == tensor.shape[1:] and tensors[key].dtype == tensor.dtype
            for key, tensor in self.tensors.items()
        )

    def _grow(self, count: int) -> None:
        self.tensors = {
            key: torch.cat([tensor, tensor.new_empty((count, *tensor.shape[1:]))])
            for key, tensor in self.tensors.items()
        }
        self._free.extend(range(self._size, self._size + count))
        self._size += count


def mixed(wanted: Iterable[NDArray], runs: Iterator[OnDevice]) -> Iterator[tuple[Batch | None, Skipped]]:  # type: ignore[type-arg]
    """Yield batches of wanted samples, None if a batch has none; and the samples that cannot be read.

    A run is read when a sample of it is wanted, and its memory is free when none is wanted any more.

    Args:
        wanted: (B,) the numbers of the samples of each batch.
        runs: together they have the samples.
    """
    held: dict[int, _Row] = {}
    pool: SamplePool | None = None
    unreadable: dict[int, str] = {}
    for numbers in wanted:
        rows, skipped = [], []
        for number in numbers.tolist():
            while number not in held and number not in unreadable:
                run = next(runs)
                unreadable.update(run.description.skipped)
                if run.batch is not None:
                    pool = pool or SamplePool(run.batch)
                    held.update(_rows(run.batch, pool))
            if number in held:
                rows.append(held.pop(number))
            else:
                skipped.append((number, unreadable.pop(number)))
        yield _joined(rows, pool) if pool and rows else None, tuple(skipped)


class _Row(NamedTuple):
    batch: Batch  # the run, with the tensors that are not in the pool
    place: int  # in the run
    slot: int  # in the pool; -1: not in it


def _rows(batch: Batch, pool: SamplePool) -> Iterator[tuple[int, _Row]]:
    slots = pool.add(batch)
    if slots is None:
        slots = [-1] * len(batch.samples)
    else:
        batch = replace(batch, tensors={key: each for key, each in batch.tensors.items() if key not in pool.tensors})
    for place, (number, slot) in enumerate(zip(batch.samples, slots, strict=True)):
        yield number, _Row(batch, place, slot)


def _joined(rows: Sequence[_Row], pool: SamplePool) -> Batch:
    first = rows[0].batch
    lengths = tuple(row.batch.lengths[row.place] for row in rows)
    slots = [row.slot for row in rows if row.slot >= 0]
    index = torch.tensor(slots) if len(slots) == len(rows) else None
    tensors = {}
    for key in pool.keys:
        if index is not None and key in pool.tensors:
            tensors[key] = pool.tensors[key].index_select(0, index)
            continue
        parts = [
            row.batch.tensors[key][row.place] if key in row.batch.tensors else pool.tensors[key][row.slot]
            for row in rows
        ]
        if key in first.per_tick:
            parts = [part[:length] for part, length in zip(parts, lengths, strict=True)]
        tensors[key] = _stacked(parts, ABSENT_STAMP_NS if is_time(key) else 0)
    pool.free(slots)
    texts = {key: tuple(row.batch.texts[key][row.place] for row in rows) for key in first.texts}
    numbers = tuple(row.batch.samples[row.place] for row in rows)
    return Batch(tensors, numbers, lengths, first.per_tick, texts, first.widths)


def _stacked(parts: list[Tensor], padding: int) -> Tensor:
    if all(part.shape == parts[0].shape for part in parts):
        return torch.stack(parts)
    longest = max(len(part) for part in parts)
    found = parts[0].new_full((len(parts), longest, *parts[0].shape[1:]), padding)
    for row, part in zip(found, parts, strict=True):
        row[: len(part)] = part
    return found


def create_rtx_dataloader(
    data_dir: str | Path,
    batch_size: int = 16,
    target_hz: float = 50.0,
    *,
    use_robocache: bool = True,
    device: str = "auto",
    modalities: Sequence[str] = ALL_MODALITIES,
    split: str = "train",
    window: Window | None = None,
    image_size: Sequence[int] | None = None,
    cache_dir: str | Path | None = None,
    cache_bytes: int | None = None,
    shuffle: bool | ShuffledRuns = True,
    workers: int = 2,
    **arguments: Any,
) -> TimelineLoader:
    """Create a loader of the RLDS datasets in a folder.

    Args:
        data_dir: see `RTXDataset`, as `target_hz`, `modalities`, `split`, `window` and `image_size`.
        batch_size: samples of a batch: episodes, or windows.
        target_hz: ticks per second.
        use_robocache: keep the aligned samples where they fit: `cache="auto"`; else `cache="none"`.
        device: of the batches.
        modalities: the parts that are read.
        split: of the datasets.
        window: the ticks of a sample.
        image_size: height and width of all images, which the datasets of a folder need in one batch.
        cache_dir: folder of downloaded files, if `data_dir` is a URL.
        cache_bytes: limit of its size; None: that of ROBOCACHE_CACHE_BYTES, or 64 GiB.
        shuffle: in a random order; see `TimelineLoader`.
        workers: processes that read.
        arguments: others of `TimelineLoader`.

    Errors:
        RoboCacheError: an argument is wrong, or the folder has no dataset.
    """
    path = dataset_path(data_dir, cache_dir=cache_dir, cache_bytes=cache_bytes)
    dataset = RTXDataset(path, modalities, target_hz, split=split, window=window, image_size=image_size)
    arguments.setdefault("cache", "auto" if use_robocache else "none")
    return TimelineLoader(dataset, batch_size, shuffle=shuffle, workers=workers, device=device, **arguments)
