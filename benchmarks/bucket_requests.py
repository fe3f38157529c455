"""The requests of an export from a bucket to a bucket, counted by a proxy in front of a server of the S3 API.

The demo recording, 9 s with two cameras and voxels, is exported once and four times to a LeRobot v3.0 dataset. The
difference is what a recording adds. A shard that has nothing to convert only looks at the recordings.

    python -m benchmarks.bucket_requests --out benchmarks/results
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT, argument_parser, machine, table, tell, write_results
from test.fleet.s3 import Bucket, FaultProxy, Faults, environment, running_server

RECORDING = ROOT / "test" / "data" / "panda_lift"
SPEC = ROOT / "config" / "panda_lift.yaml"
MORE = 3  # recordings of the larger export, beyond one
IDLE_SHARD = f"{2 * MORE}/{2 * MORE + 1}"  # has more shards before it than there are recordings
METHODS = ("GET", "HEAD", "PUT", "LIST", "DELETE", "POST")


def exported(bucket: Bucket, faults: Faults, cache: Path, raw: str, out: str, *options: str) -> Counter[str]:
    """Export the recordings below a key, with an empty cache; return the number of requests by method."""
    faults.restart()
    variables = {**environment(faults.endpoint), "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT)}
    places = (f"{bucket.url}/{raw}", "--spec", str(SPEC), "--out", f"{bucket.url}/{out}", *options)
    command = [sys.executable, "-m", "robocache_ros", "export", *places]
    subprocess.run(command, check=True, env=os.environ | variables, stdout=subprocess.DEVNULL)
    lists = sum("list-type=" in each.path for each in faults.requests)
    counts = Counter(each.method for each in faults.requests)
    return counts + Counter(LIST=lists) - Counter(GET=lists)


def measure(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Return the requests of each kind of export: of one recording, and of each further one."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    with running_server(folder) as server, FaultProxy(server) as proxy:
        bucket = Bucket.created(server)
        (file,) = RECORDING.glob("*.mcap")
        for number in (1, 1 + MORE):
            for index in range(number):
                bucket.put(f"folders_{number}/lift_{index}", RECORDING)
                bucket.put(f"files_{number}/lift_{index}.mcap", file)
        shard = ("--pieces", f"{bucket.url}/pieces", "--shard", IDLE_SHARD)
        for kind, raw, options in (
            ("export", "folders", ()),
            ("idle shard, folders", "folders", shard),
            ("idle shard, files", "files", shard),
        ):
            tell(kind)
            one, many = (
                exported(
                    bucket,
                    proxy.faults,
                    folder / f"{kind} {n}",
                    f"{raw}_{n}",
                    f"{kind} {n}".replace(" ", "_"),
                    *options,
                )
                for n in (1, 1 + MORE)
            )
            found[kind] = {
                "one": {method: one[method] for method in METHODS},
                "each more": {method: round((many[method] - one[method]) / MORE, 1) for method in METHODS},
            }
    return found


def page(results: dict[str, Any]) -> str:
    """Return the results as a Markdown page."""
    about = results["machine"]
    lines = [
        "# Requests of exports from a bucket to a bucket",
        "",
        f"`python -m benchmarks.bucket_requests`, Python {about['python']}, {about['date']}. `test/data/panda_lift`, a "
        f"folder or a file of {results['recording_bytes'] / 1e6:.0f} MB, to LeRobot v3.0. An idle shard has nothing to "
        "convert.",
        "",
    ]
    rows = [
        (f"{kind}: {what}", *(f"{number:g}" for number in numbers.values()))
        for kind, counts in results["requests"].items()
        for what, numbers in counts.items()
    ]
    lines += table(("", *METHODS), rows)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Count, and write the results."""
    given = argument_parser(__doc__).parse_args()
    size = sum(file.stat().st_size for file in RECORDING.iterdir())
    with tempfile.TemporaryDirectory() as folder:
        results = {"machine": machine(), "recording_bytes": size, "requests": measure(Path(folder))}
    write_results(given.out, "bucket_requests", results, page(results))
    print(page(results))


if __name__ == "__main__":
    main()
