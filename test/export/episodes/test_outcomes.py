"""Tasks, rewards and success that a recording states, in datasets."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from robocache_ros.exporter.job import export
from robocache_ros.spec.dataset import DatasetOptions
from test.export.episodes.conftest import START_NS, spec_of

pq = pytest.importorskip("pyarrow.parquet")

OUTCOMES = {
    "reward": {"topic": "/reward", "type": "std_msgs/msg/Float32", "role": "reward", "max_age_ms": 19},
    "done": {"topic": "/done", "type": "std_msgs/msg/Bool", "role": "success"},
}
EVENTS = {
    ("/episode", "std_msgs/msg/Empty"): [(5, 0)],
    ("/task", "std_msgs/msg/String"): [(0, "lift"), (5, "place")],
    ("/reward", "std_msgs/msg/Float32"): [(1, 0.5), (6, 2.0)],
    ("/done", "std_msgs/msg/Bool"): [(4, True), (9, False)],
}
OPTIONS = DatasetOptions(
    formats=("lerobot", "webdataset"), media="none", episode_topic="/episode", task_topic="/task", action="delta"
)


def test_formats_have_the_task_the_rewards_and_the_success_of_each_episode(
    record: Callable[..., Path], tmp_path: Path
) -> None:
    export([record(EVENTS)], spec_of(**OUTCOMES), tmp_path / "out", OPTIONS)

    tasks = pq.read_table(next((tmp_path / "out" / "lerobot").rglob("tasks.parquet"))).to_pydict()
    assert sorted(text for column in tasks.values() for text in column if isinstance(text, str)) == ["lift", "place"]
    steps = []
    for shard in sorted((tmp_path / "out" / "webdataset").rglob("*.tar")):
        with tarfile.open(shard) as tar:
            members = [member for member in tar if member.name.endswith("json")]
            steps += [json.load(tar.extractfile(member)) for member in members]  # type: ignore[arg-type]
    reported = {(step["task"], step["success"]): step["episode"] for step in steps}
    assert reported == {("lift", True): 0, ("place", False): 1}
    assert {step["tick_ns"]: step["reward"] for step in steps if step["reward"]} == {
        START_NS + 10**9: 0.5,
        START_NS + 6 * 10**9: 2.0,
    }


@pytest.mark.slow
def test_a_dataset_has_the_same_bytes_for_one_process_and_for_two(record: Callable[..., Path], tmp_path: Path) -> None:
    bags = [record(EVENTS, name="a"), record(EVENTS, name="b", state=lambda k: None if 100 <= k < 130 else (k, 0))]
    spec = spec_of(**OUTCOMES, state={"on_invalid": "drop"})
    made = [
        export(bags, spec, tmp_path / f"jobs_{jobs}" / "set", OPTIONS, jobs=jobs, report=False).out for jobs in (1, 2)
    ]
    one, two = ({str(f.relative_to(out)): f.read_bytes() for f in out.rglob("*") if f.is_file()} for out in made)
    assert one == two
    reported = json.loads(one["lerobot/meta/robocache.json"])
    assert [(episode["recording"], episode["task"]) for episode in reported["episodes"]] == [
        (0, "lift"),
        (0, "place"),
        (1, "place"),
    ]
