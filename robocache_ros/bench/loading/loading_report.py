"""The result of the benchmark of the loader as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from robocache_ros.bench.export.machine import middle

BOUND, NESTED = "bound: ", "nested loop"


def summary(rounds: Sequence[Mapping[str, float]], wanted: Mapping[str, float]) -> dict[str, Any]:
    """The medians by form, and how our best form compares with the peers'.

    Args:
        rounds: by form the rate of each round.
        wanted: by kind of peer (`peer`, `nested loop`) the ratio that is wanted.
    """
    rates = {name: middle([each[name] for each in rounds]) for name in rounds[0]}
    ours = {name: rate for name, rate in rates.items() if name.startswith("ours")}
    best = max(ours, key=lambda name: ours[name])
    found: dict[str, Any] = {"rates": rates, "best": best}
    for kind, ratio in wanted.items():
        peers = [name for name in rates if _is_peer(name, kind)]
        if peers:
            peer = max(peers, key=lambda name: rates[name])
            times = middle([each[best] / each[peer] for each in rounds])
            found[kind] = {"best": peer, "times": times, "wanted": ratio}
    return found


def as_markdown(result: Mapping[str, Any]) -> str:
    """The result as text: a table for each dataset."""
    on = result["machine"]
    lines = [
        "# Batches of public datasets",
        "",
        f"`python -m robocache_ros.bench.loading` on {on['cores']} cores of an {on['cpu']}, Python {on['python']}, "
        f"{on['date']}, load before {on['load_before']}. Each form in a process of its own, in turn; medians of "
        f"{result['rounds']} rounds, ratios of the best forms within a round. Each was measured after its first batch.",
    ]
    for case in result["cases"].values():
        lines += ["", f"## {case['title']}", "", case["note"], "", f"| form | {case['unit']} |", "|---|---:|"]
        lines += [f"| {name} | {rate:,.0f} |" for name, rate in case["rates"].items()]
        for kind in ("peer", NESTED):
            if kind in case:
                told = case[kind]
                lines += ["", f"{case['best']}: {told['times']:g} times {told['best']} (wanted: {told['wanted']:g})."]
    return "\n".join([*lines, ""])


def _is_peer(name: str, kind: str) -> bool:
    return not name.startswith(("ours", BOUND)) and (name == NESTED) == (kind == NESTED)
