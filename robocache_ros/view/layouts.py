"""Layouts of other viewers for the topics of a fusion node: Foxglove and Lichtblick, and PlotJuggler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from robocache_ros.spec import FusionSpec, StreamSpec
from robocache_ros.spec.layout import Layout, PlotColumn
from robocache_ros.view.scene import PALETTE

NODE = "/fusion_node"
MAX_SERIES = 32  # of a plot
POSES = ("geometry_msgs/msg/PoseStamped", "geometry_msgs/msg/PoseWithCovarianceStamped", "nav_msgs/msg/Odometry")


def _color(index: int) -> str:
    return "#{:02x}{:02x}{:02x}".format(*PALETTE[index % len(PALETTE)])


def _columns_of(layout: Layout, stream: StreamSpec) -> list[PlotColumn]:
    """Return the values of a stream that are plotted."""
    return [each for each in layout.plotted if each.stream == stream.name and each.column < layout.width][:MAX_SERIES]


def foxglove(spec: FusionSpec) -> dict[str, Any]:
    """Return a layout of Foxglove and Lichtblick: cameras and 3D; plots of the streams, their validity, diagnostics."""
    layout, panels = Layout(spec), dict[str, dict[str, Any]]()
    place = {each.name: index for index, each in enumerate(layout.plotted)}

    def panel(kind: str, name: str, config: dict[str, Any]) -> str:
        panels[f"{kind}!{name}"] = config
        return f"{kind}!{name}"

    cameras = [
        panel("Image", s.name, {"imageMode": {"imageTopic": s.topic}, "foxglovePanelTitle": s.name})
        for s in spec.streams
        if s.kind == "image"
    ]
    left = [_split("row", cameras)] if cameras else []
    shown = {f"{NODE}/{s.name}/aligned": {"visible": True, **_BOXES} for s in spec.streams if s.kind == "cloud"}
    shown |= {s.topic: {"visible": True} for s in spec.streams if s.kind == "cloud" or s.type in POSES}
    if shown or spec.transforms:
        frame = next((s.voxels.frame for s in spec.framed if s.voxels), "")
        left.append(panel("3D", "scene", {"topics": shown, **({"followTf": frame} if frame else {})}))
    plots = [
        panel(
            "Plot",
            s.name,
            {
                "paths": [
                    _series(f"{NODE}/plot.position[{place[each.name]}]", each.name.partition(".")[2], index)
                    for index, each in enumerate(_columns_of(layout, s))
                ],
                "foxglovePanelTitle": f"{s.name} ({s.unit})" if s.unit else s.name,
                **_PLOT,
            },
        )
        for s in spec.vectors
    ]
    states = [
        {"value": f"{NODE}/plot.position[{place[f'valid:{name}']}]", "label": name, "timestampMethod": "headerStamp"}
        for name in layout.names
    ]
    ages = [
        _series(f"{NODE}/plot.position[{place[f'age_ms:{name}']}]", name, index)
        for index, name in enumerate(layout.names)
    ]
    bottom = [
        panel("StateTransitions", "valid", {"paths": states, "isSynced": True, "foxglovePanelTitle": "valid"}),
        panel("Plot", "age", {"paths": ages, "foxglovePanelTitle": "age (ms)", **_PLOT}),
        panel(
            "DiagnosticSummary", "diagnostics", {"minLevel": 0, "topicToRender": "/diagnostics", "sortByLevel": True}
        ),
    ]
    right = _split("column", [*plots, _split("row", bottom)])
    if left:
        right = {"direction": "row", "first": _split("column", left), "second": right, "splitPercentage": 40}
    return {
        "configById": panels,
        "globalVariables": {},
        "userNodes": {},
        "playbackConfig": {"speed": 1},
        "layout": right,
    }


_BOXES = {"pointShape": "cube", "colorMode": "colormap", "colorField": "z", "colorMap": "turbo"}
_PLOT = {
    "xAxisVal": "timestamp",
    "isSynced": True,
    "showLegend": True,
    "legendDisplay": "left",
    "showXAxisLabels": True,
    "showYAxisLabels": True,
}


def _series(path: str, label: str, index: int) -> dict[str, Any]:
    return {
        "value": path,
        "label": label,
        "enabled": True,
        "timestampMethod": "headerStamp",
        "color": _color(index),
    }


def _split(direction: str, parts: Sequence[Any]) -> Any:
    """Return panels in a row or a column, of equal size."""
    if len(parts) == 1:
        return parts[0]
    rest = _split(direction, parts[1:])
    return {"direction": direction, "first": parts[0], "second": rest, "splitPercentage": 100 / len(parts)}


def plotjuggler(spec: FusionSpec) -> str:
    """Return a layout of PlotJuggler (XML): a plot of each stream, of `valid` and of the ages, from `~/plot`."""
    layout = Layout(spec)
    plots = {s.name: [each.name for each in _columns_of(layout, s)] for s in spec.vectors}
    plots |= {kind: [f"{kind}:{name}" for name in layout.names] for kind in ("valid", "age_ms")}
    root = ElementTree.Element("root")
    tabs = ElementTree.SubElement(root, "tabbed_widget", {"parent": "main_window", "name": "Main Window"})
    for first in range(0, len(plots), _PLOTS_OF_TAB):
        names = list(plots)[first : first + _PLOTS_OF_TAB]
        tab = ElementTree.SubElement(tabs, "Tab", tab_name=", ".join(names), containers="1")
        sizes = ";".join(f"{1 / len(names):.6f}" for _ in names)
        area = ElementTree.SubElement(
            ElementTree.SubElement(tab, "Container"),
            "DockSplitter",
            orientation="-",
            count=str(len(names)),
            sizes=sizes,
        )
        for name in names:
            dock = ElementTree.SubElement(area, "DockArea", name=name)
            plot = ElementTree.SubElement(
                dock, "plot", mode="TimeSeries", style="Lines", flip_x="false", flip_y="false"
            )
            ElementTree.SubElement(plot, "limitY")
            for index, column in enumerate(plots[name]):
                ElementTree.SubElement(plot, "curve", name=f"{NODE}/plot/{column}/position", color=_color(index))
    ElementTree.SubElement(tabs, "currentTabIndex", index="0")
    ElementTree.SubElement(root, "use_relative_time_offset", enabled="1")
    ElementTree.indent(root, " ")
    return "<?xml version='1.0' encoding='UTF-8'?>\n" + ElementTree.tostring(root, encoding="unicode") + "\n"


_PLOTS_OF_TAB = 4
