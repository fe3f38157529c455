"""Text from recordings, specs and messages never names what is imported, run or formatted."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from robocache_ros.errors import RoboCacheError
from robocache_ros.formats.registry import load_format
from test import forked

PACKAGE = Path(__file__).parents[2] / "robocache_ros"
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
    ("policy/policies/function.py", "import_module"): "the function that the user names on the command line",
    ("decode/definitions.py", "import_module"): "packages that an installed message class names as its fields'",
    ("nodes/middleware.py", "import_module"): "a package that matches ROS's names; see the test below",
}


def calls(names: set[str]) -> Iterator[tuple[str, str, ast.Call]]:
    for module in sorted(PACKAGE.rglob("*.py")):
        text = module.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(name in text for name in names) else ():
            if isinstance(node, ast.Call):
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
                of = called.value.id if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) else ""
                if isinstance(called, ast.Attribute) and name in BUILTINS and of != "builtins":
                    continue  # a method, such as that of a module of torch
                if name in names and of not in ("re", "json", "torch"):
                    yield str(module.relative_to(PACKAGE)), name, node


def test_nothing_runs_code_by_a_name_that_is_not_a_constant() -> None:
    found = {
        (file, name)
        for file, name, call in calls(RUNS_CODE)
        if not (call.args and all(isinstance(argument, ast.Constant) for argument in call.args))
    }
    assert found <= KNOWN.keys()


def test_libraries_are_requested_by_constants() -> None:
    names = [ast.unparse(call.args[0]) for file, _, call in calls({"need"}) if file != "extras.py"]
    assert names
    assert {name for name in names if not name.startswith(("'", '"'))} <= {"library"}


@pytest.mark.parametrize("name", ["evil", "evil:Writer", "os:system", "", "../lerobot"])
def test_a_format_that_is_not_in_the_table_is_refused(name: str) -> None:
    with pytest.raises(RoboCacheError, match=r"^formats: "):
        load_format(name)


EVIL = "raise SystemExit('the module ran')"
IMPORT = (
    "from robocache_ros.nodes.middleware import load_message_class as load; import sys;"
    "print([load(name) for name in sys.argv[1:]])"
)


@pytest.mark.ros
def test_message_types_of_a_recording_do_not_import_what_is_next_to_it(tmp_path: Path) -> None:
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
