"""What importing the package costs, in which direction its parts import each other, and that input runs no code."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from robocache_ros.errors import RoboCacheError, printable
from robocache_ros.formats.registry import load_format
from test import forked

PACKAGE = Path(__file__).parents[2] / "robocache_ros"
# A part imports parts of its own row and of the rows before it.
ORDER = [row.split() for row in """
    buffer_pool errors json_values lazy_names processes units
    extras resources
    alignments monitoring programs reductions storage
    file_limits untrusted_files
    spec | ops | decode | engine | ipc | bags | formats
    recorder sim
    datasets view
    exporter | training | policy | nodes
    bench client filters
    cli | demo
    __init__ __main__
""".replace("|", "\n").split("\n")]  # fmt: skip
LEVEL = {part: level for level, parts in enumerate(ORDER) for part in parts}
ROS = {
    *("rclpy", "rosidl_runtime_py", "message_filters", "launch", "launch_ros", "builtin_interfaces", "std_msgs"),
    *("std_srvs", "sensor_msgs", "geometry_msgs", "diagnostic_msgs", "lifecycle_msgs", "rosgraph_msgs"),
    *("rcl_interfaces", "tf2_msgs"),
}
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(module):
    return ast.parse(module.read_text(encoding="utf-8"))


def part(module):
    """The part of the package that a file belongs to, such as `ops`."""
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_of(module):
    """The name by which a file is imported."""
    return ".".join(module.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


NAMES = {name_of(module) for module in MODULES}


@cache
def imports(module):
    """Every module that a file imports, by its absolute name, also inside functions and through `need("module", …)`.

    A name that is taken from a package's `__init__` is an import of the package; a module that is taken from it is not.
    What is imported for type checkers alone is left out.
    """
    here = ("robocache_ros", *module.relative_to(PACKAGE).with_suffix("").parts)
    tree = tree_of(module)
    checked = (n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    typing_only = {inner for node in checked for inner in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        match node:
            case _ if node in typing_only:
                continue
            case ast.Import():
                found += [alias.name for alias in node.names]
            case ast.ImportFrom():
                above = ".".join(here[: len(here) - node.level]) if node.level else ""
                base = ".".join(filter(None, (above, node.module)))
                names = [f"{base}.{alias.name}" for alias in node.names]
                found += [name if name in NAMES else base for name in names]
            case ast.Call(func=ast.Name(id="need" | "import_module"), args=[ast.Constant(value=str(name)), *_]):
                found.append(name)
    return tuple(found)


def importing(packages):
    """The files that import one of some top-level packages."""
    return [module for module in MODULES if {name.split(".")[0] for name in imports(module)} & packages]


def test_imports_point_one_way():
    # A new part gets its place in ORDER.
    above = {
        f"{module.relative_to(PACKAGE)} imports {name}"
        for module in MODULES
        for name in imports(module)
        if name.startswith("robocache_ros.") and LEVEL.get(name.split(".")[1], -1) > LEVEL[part(module)]
    }
    assert above == set()


def test_no_modules_of_a_package_import_each_other():
    # Also not through others. A folder counts as one module of its package, and is a package itself.
    found = set()
    for package in {name_of(file.parent) for file in MODULES}:
        graph: dict[str, set[str]] = {}
        for module in MODULES:
            if (name := name_of(module)).startswith(f"{package}."):
                others = {child(other, package) for other in imports(module) if other.startswith(f"{package}.")}
                graph.setdefault(child(name, package), set()).update(others)
        found |= circles(graph)
    assert found == set()


def child(name, package):
    """The module or folder of a package that a module is, or is in."""
    return ".".join(name.split(".")[: package.count(".") + 2])


def circles(graph):
    """The largest sets of nodes each of which is reached from all others."""
    reached = {node: others - {node} for node, others in graph.items()}
    for middle in graph:
        for others in reached.values():
            if middle in others:
                others |= reached[middle]
    groups = (frozenset(other for other in reached[node] if node in reached.get(other, ())) for node in graph)
    return {group for group in groups if len(group) > 1}


def test_ros_is_imported_in_nodes_and_their_bench_only_and_cupy_in_ops():
    assert [module for module in importing(ROS) if part(module) not in ("nodes", "bench")] == []
    assert [module for module in importing({"cupy"}) if "ops" not in module.relative_to(PACKAGE).parts[:2]] == []


def test_import_needs_torch_numpy_and_yaml_only():
    # The public names are loaded when first used: each is, but the client, which is for machines with ROS.
    code = """
import sys
import numpy, torch, yaml
before = {name.split(".")[0] for name in sys.modules}
import robocache_ros
for name in robocache_ros.__all__:
    if not name.startswith("Fused"):
        getattr(robocache_ros, name)
new = {name.split(".")[0] for name in sys.modules} - before
print(*sorted(new - set(sys.stdlib_module_names) - {"robocache_ros"}))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_filters_without_message_filters_say_where_it_comes_from(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("robocache_ros.filters")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "message_filters", None)
    wanted = r"^robocache_ros\.filters: message_filters is not installed; source a ROS 2"
    with pytest.raises(RoboCacheError, match=wanted):
        importlib.import_module("robocache_ros.filters")


# What opens files that an export itself has written.
WRITERS = {
    *("dataset_folder.py", "pictures.py", "pieces.py", "recording.py", "video.py", "delta/log.py", "lerobot/write.py")
}


def test_readers_and_validators_open_files_of_datasets_in_one_module_only():
    # `untrusted_files` knows which files these are. Paths for pyarrow come from it too, as the type DatasetFile.
    opens = re.compile(
        r"""\bneed\('av'.*\.open|^av\.open|\.File$|\.(read_bytes|read_text)$|np\.load|\.open$|^open$|memmap$"""
    )
    others = re.compile(
        r"""\.open\('[wx]b'\)|BytesIO|fileobj|np\.load\(file,|gzip\.open|'/proc|File\(disk, 'w'|_?memmap\("""
    )
    formats = PACKAGE / "formats"
    modules = [m for m in formats.rglob("*.py") if str(m.relative_to(formats)) not in WRITERS]
    found = {
        f"{module.name}: {ast.unparse(node)}"
        for module in [*(PACKAGE / "datasets").rglob("*.py"), *modules]
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Call) and opens.search(ast.unparse(node.func)) and not others.search(ast.unparse(node))
    }
    assert len(modules) > 20
    assert found == set()


@given(st.text(), st.integers(8, 200))
@example("/camera/front größe", 100)
@example("a\n[ERROR] b\x1b[31m", 100)
@example("a" * 100 + "b" * 10**6, 21)
@example("a" * 101, 100)
def test_text_from_outside_is_printable_and_bounded(text, limit):
    shown = printable(text, limit)
    known = {"/camera/front größe": "/camera/front größe", "a\n[ERROR] b\x1b[31m": "a\\n[ERROR] b\\x1b[31m"}
    known["a" * 100 + "b" * 10**6] = "a" * 10 + "…" + "b" * 10  # its beginning and its end
    assert shown.isprintable()
    assert len(shown) <= limit
    assert limit not in (21, 100) or text not in known or shown == known[text]


BUILTINS = {"__import__", "eval", "exec", "compile"}
RUNS_CODE = {"import_module", "__import__", "eval", "exec", "compile", "format_map", "loads", "unsafe_load"}
# Calls whose argument is not a constant: file, call, and why no input reaches it.
KNOWN = {
    ("alignments/__init__.py", "import_module"): "the package's own files",
    ("reductions/__init__.py", "import_module"): "the package's own files",
    ("datasets/loader/worker.py", "loads"): "the dataset, which the parent process sends",
    ("extras.py", "import_module"): "callers name libraries by constants; see the test below",
    ("lazy_names.py", "import_module"): "names of tables of packages, see `_HOMES` in their `__init__.py`",
    ("formats/registry.py", "import_module"): "values of a table in the same file",
    ("cli/commands.py", "import_module"): "constants of the commands in the same file",
    ("programs.py", "import_module"): "the console scripts of the package",
    ("policy/policies/__init__.py", "import_module"): "the function that the user names on the command line",
    ("decode/definitions.py", "import_module"): "packages that an installed message class names as its fields'",
    ("nodes/middleware.py", "import_module"): "a package that matches ROS's names; see the test below",
}


def calls(names):
    for module in MODULES:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.Call):
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                of = called.value.id if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) else ""
                if isinstance(called, ast.Attribute) and name in BUILTINS and of != "builtins":
                    continue  # a method, such as that of a module of torch
                if name in names and of not in ("re", "json", "torch"):
                    yield str(module.relative_to(PACKAGE)), name, node


def test_nothing_runs_code_by_a_name_that_is_not_a_constant_and_libraries_are_requested_by_constants():
    found = {
        (file, name)
        for file, name, call in calls(RUNS_CODE)
        if not (call.args and all(isinstance(argument, ast.Constant) for argument in call.args))
    }
    assert found <= KNOWN.keys()
    names = [ast.unparse(call.args[0]) for file, _, call in calls({"need"}) if file != "extras.py"]
    assert names
    assert {name for name in names if not name.startswith(("'", '"'))} <= {"library"}


@pytest.mark.parametrize("name", ["evil", "evil:Writer", "os:system", "", "../lerobot"])
def test_a_format_that_is_not_in_the_table_is_refused(name):
    with pytest.raises(RoboCacheError, match=r"^formats: "):
        load_format(name)


EVIL = "raise SystemExit('the module ran')"
IMPORT = (
    "from robocache_ros.nodes.middleware import load_message_class as load; import sys;"
    "print([load(name) for name in sys.argv[1:]])"
)


@pytest.mark.ros
def test_message_types_of_a_recording_do_not_import_what_is_next_to_it(tmp_path):
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "evil_msgs").mkdir()
    (tmp_path / "evil_msgs" / "__init__.py").write_text(EVIL)
    names = ["evil/msg/A", "evil_msgs/msg/A", "evil", "", "a/b/c/d", "os.path/msg/A", "../evil/msg/A", "evil\n/msg/A"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", IMPORT, *names, "std_msgs/msg/String"]
    done = forked.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("None") == len(names)
    assert "std_msgs.msg" in done.stdout
