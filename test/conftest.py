"""Skips the tests that need what this machine lacks, and says how to get it."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import logging
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from robocache_ros.extras import EXTRAS

ROOT = Path(__file__).parents[1]

# Python has a package `test` of its own, which pytest before 8 takes for the parent of these modules: without this,
# tests cannot import the helpers beside them.
_package = ModuleType("test")
_package.__path__ = [str(Path(__file__).parent)]
sys.modules["test"] = _package

# How long an example takes, or its data, depends on the machine, and is for the benchmarks.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

# Modules of the extras, and of tests alone. A test that fails because one is not installed is skipped.
OPTIONAL = {*EXTRAS, "boto3", "botocore", "colcon_core", "duckdb", "flask", "moto", "polars", "ray", "s3fs", "zarr"}
# Folders whose conftest.py imports what an extra installs. A skip inside a conftest.py would not do: before version 8,
# pytest then skips the run and reports success.
_EXPORT = ("rosbags", "pyarrow", "av", "PIL", "jinja2", "matplotlib")
_SIM = ("sim", ("mujoco", "rosbags"))  # found, not imported: the simulation chooses how MuJoCo renders before
NEEDS = {
    "bags": ("bags", ("rosbags",)),
    "decode": ("bags", ("rosbags",)),
    **dict.fromkeys(("policy/test_outputs.py", "policy/test_runner.py"), ("bags", ("rosbags",))),
    **dict.fromkeys(("export/test_dense_formats.py", "export/readers/test_dense_formats.py"), ("hdf5", ("h5py",))),
    **dict.fromkeys(("cli", "policy/doctor"), ("cli,export", ("typer", "rich", *_EXPORT))),
    **dict.fromkeys(("training", "export"), ("export", _EXPORT)),
    "policy/test_servers.py": ("policies", ("websockets", "msgpack", "zmq")),
    **dict.fromkeys(("sim", "nodes/test_simulator.py", "nodes/runner/test_interventions.py"), _SIM),
    **dict.fromkeys(("nodes/recording/test_recorded_labels.py", "policy/doctor/test_so101_policy.py"), _SIM),
    "fleet": ("export,cli,fleet,dev", ("s3fs", "moto", "typer", "rich", *_EXPORT)),
}

# Folders and files whose tests are all marked `slow`.
SLOW = tuple(
    (Path(__file__).parent / place).resolve(strict=True)
    for place in ("fleet/deploy", "fleet/ray", "fuzz/test_memory.py")
)

DOMAINS = 101  # ROS domains; the ports of a higher one may be taken by any program


def claim_ros_domain() -> int:
    """Claim a ROS domain that no other run of the tests on this machine uses, from $ROS_DOMAIN_ID on."""
    first = int(os.environ.get("ROS_DOMAIN_ID") or os.getpid())
    for number in range(first, first + DOMAINS):
        domain = 1 + (number - 1) % DOMAINS
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0robocache-tests-domain-{domain}")  # without a file: as far as the ports of a domain reach
        except OSError:
            claim.close()
        else:
            claim.detach()  # it is open until this process ends
            return domain
    raise RuntimeError(f"all {DOMAINS} ROS domains are used by other runs of the tests")


# Before rclpy is imported anywhere: no nodes of other runs or of this run's other processes, none of other machines.
os.environ["ROS_DOMAIN_ID"] = str(claim_ros_domain())
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"

# What a shell starts in the background ignores Ctrl-C, and so do its children: tests interrupt theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def missing(marker: str) -> str:
    """Why tests with a marker cannot run here; empty where they can."""
    if marker == "gpu":
        import torch

        found = torch.cuda.is_available() and find_spec("cupy") is not None
        return "" if found else "needs a CUDA device and CuPy (the cuda12 or cuda13 extra)"
    return "" if find_spec("rclpy") else "needs rclpy (the ros extra, or a sourced ROS 2)"


@cache
def _in_slow_folder(path: Path) -> bool:
    return any(path.is_relative_to(place) for place in SLOW)


@cache
def absent(place: str) -> tuple[str, ...]:
    """The modules that a folder or file of tests needs and that are not installed."""
    return tuple(module for module in NEEDS.get(place, ("", ()))[1] if find_spec(module) is None)


def not_installed(error: BaseException | None) -> str:
    """The optional module whose absence caused an error; empty if it has another cause."""
    while error is not None:
        root = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if root in OPTIONAL and find_spec(root) is None:
            return root
        error = error.__cause__ or error.__context__
    return ""


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, object, None]:
    collect = collector.collect

    def collected() -> object:
        try:
            if not isinstance(collector, pytest.Module) or sys.dont_write_bytecode:
                return collect()
            with collector.path.open() as file:  # one process compiles it, the others load what that has written
                fcntl.flock(file, fcntl.LOCK_EX)
                return collect()
        except Exception as error:
            if module := not_installed(error):
                pytest.skip(f"{module} is not installed", allow_module_level=True)
            raise

    collector.collect = collected  # type: ignore[method-assign,assignment]
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, object, None]:
    error = call.excinfo.value if call.excinfo else None
    if not isinstance(error, pytest.skip.Exception) and (module := not_installed(error)):
        try:
            pytest.skip(f"{module} is not installed")
        except pytest.skip.Exception:
            call.excinfo = pytest.ExceptionInfo.from_current()
    yield


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if "not slow" in config.option.markexpr and _in_slow_folder(collection_path):
        return True  # without importing what its tests need
    here = Path(__file__).parent
    inside = collection_path.is_relative_to(here)
    return True if inside and absent(collection_path.relative_to(here).as_posix()) else None


def pytest_report_header() -> list[str]:
    missing = [(name, extra, ", ".join(absent(name))) for name, (extra, _) in NEEDS.items() if absent(name)]
    return [f"not collected: test/{name}, needs the {extra} extra ({modules})" for name, extra, modules in missing]


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # the processes of pytest-xdist take files in the order of `mixed`


# Seconds of a processor for a test, where that is more than 0.1.
COST_S = {
    "nodes/parity": 2.5, "nodes/runner": 2.3, "nodes/recording": 1.2, "nodes": 0.3, "sim": 0.6, "fleet": 0.5,
    "export": 0.3, "fuzz": 0.3, "cli": 0.2,
}  # fmt: skip


def mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests in an order in which files that wait for nodes run beside files that compute, of each the longest first.

    Those that wait end somewhat earlier.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)

    def cost_s(path: Path) -> float:
        place = path.relative_to(Path(__file__).parent).as_posix()
        each = next((seconds for folder, seconds in COST_S.items() if place.startswith(f"{folder}/")), 0.1)
        return each * sum(not item.get_closest_marker("slow") for item in files[path])

    places = []
    for waits, end in ((True, 0.9), (False, 1.0)):
        paths = [path for path, tests in files.items() if bool(tests[0].get_closest_marker("ros")) == waits]
        paths.sort(key=cost_s, reverse=True)
        places += [(end * number / len(paths), path) for number, path in enumerate(paths)]
    return [item for _, path in sorted(places) for item in files[path]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(marker) for marker in ("package", "reader")) or _in_slow_folder(item.path):
            item.add_marker(pytest.mark.slow)
        for marker in ("gpu", "ros"):
            if item.get_closest_marker(marker) and (reason := missing(marker)):
                item.add_marker(pytest.mark.skip(reason=reason))
    if os.environ.get("PYTEST_XDIST_WORKER"):
        items[:] = mixed(items)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Generator[None, object, None]:
    # Half a million objects of modules and tests stay. Without a look at them, tests are collected in a tenth less
    # time, and a garbage collection takes a hundredth.
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


def pytest_runtest_setup() -> None:
    # ROS's launch, once a test has imported it, lets no logger that is made later hand its records on to caplog.
    logging.setLoggerClass(logging.Logger)


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Restores the handlers of signals: a program that a test calls in this process ignores Ctrl-C at its end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture
def real() -> Path:
    """The folder of recordings and datasets that others made."""
    folder = os.environ.get("ROBOCACHE_RECORDINGS")
    if not folder:
        pytest.skip("ROBOCACHE_RECORDINGS is not set")
    return Path(folder)


@pytest.fixture(scope="module")
def forked_policies() -> Iterator[None]:
    """The processes of policies are forked as workers of datasets are: a new one imports torch for three seconds."""
    from robocache_ros.datasets.forked_processes import worker_context
    from robocache_ros.policy import worker

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "multiprocessing", SimpleNamespace(get_context=lambda _: worker_context()))
        yield


@pytest.fixture(scope="session")
def host_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ctypes.CDLL]:
    """Builds C++ that includes kernels/*.cuh with g++, one rounding per operation as on the GPU, and loads it."""
    from robocache_ros.ops.cuda.kernels import GENERATED

    cxx = shutil.which("g++")
    if not cxx:
        pytest.skip("needs g++ (on Debian and Ubuntu: sudo apt install g++)")
    folder = tmp_path_factory.mktemp("host")
    for name, text in GENERATED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text())
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-fPIC"]
    # Parsing these takes half of the time that a library takes.
    header = folder / "standard.h"
    header.write_text("#include <cmath>\n#include <cstring>\n#include <vector>\n")
    subprocess.run([cxx, *flags, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    flags += ["-shared", f"-I{ROOT / 'kernels'}", f"-I{folder}", "-include", str(header)]

    @cache
    def build(text: str, defines: tuple[str, ...] = ()) -> ctypes.CDLL:
        file = folder / f"{len(os.listdir(folder))}.cpp"
        file.write_text(text)
        command = [cxx, *flags, *(f"-D{define}" for define in defines), str(file), "-o", str(file.with_suffix(".so"))]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(file.with_suffix(".so")))

    return build


class Finished(NamedTuple):
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def robocache(capfd: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """Runs a command of `robocache` in this process."""
    from robocache_ros.cli import main

    def run(*arguments: object) -> Finished:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Finished(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def tf_message() -> Callable[..., bytes]:
    """A tf2_msgs/msg/TFMessage in CDR of (stamp in ns, parent, child, position[, rotation]) tuples."""

    def write(*transforms: tuple[Any, ...]) -> bytes:
        data = bytearray(struct.pack("<I", len(transforms)))
        for stamp_ns, parent, child, position, *rotation in transforms:
            for head, frame in ((struct.pack("<iI", *divmod(stamp_ns, 10**9)), parent), (b"", child)):
                name = frame.encode() + b"\0"
                data += bytes(-len(data) % 4) + head + struct.pack("<I", len(name)) + name
            data += bytes(-len(data) % 8) + struct.pack("<7d", *position, *(rotation or [(0, 0, 0, 1)])[0])
        return b"\0\1\0\0" + bytes(data)

    return write


@pytest.fixture(scope="session")
def one_point() -> Callable[..., bytes]:
    """A sensor_msgs/msg/PointCloud2 of one point in CDR."""
    from test.fuzz.messages import header, serialize

    def cloud(stamp_ns: int, point: tuple[float, ...] = (0.0, 0.0, 1.0), frame: str = "camera") -> bytes:
        fields = [{"name": name, "offset": 4 * axis, "datatype": 7, "count": 1} for axis, name in enumerate("xyz")]
        shape = {"height": 1, "width": 1, "point_step": 12, "row_step": 12, "is_dense": True, "fields": fields}
        values = {"header": header(stamp_ns, frame), **shape, "data": struct.pack("<3f", *point)}
        return serialize("sensor_msgs/msg/PointCloud2", values)

    return cloud
