"""Every code block of the pages fits the code: commands and options exist, Python calls bind, specs load.

Blocks that need no robot, GPU or server also run: those of RUN here, those of the tutorials in
test/cli/test_tutorials.py, and the SQL in test/export/test_delta.py.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import json
import re
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
import yaml

from robocache_ros.errors import RoboCacheError
from robocache_ros.spec import load_spec
from robocache_ros.spec.fusion import FusionSpec
from robocache_ros.spec.keys import keys_of
from robocache_ros.spec.run import OutputSpec

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"])
    if page.parent.name != "api" and page.name != "index.md"  # generated from the others
]
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


SETUP = (ROOT / "setup.py").read_text(encoding="utf-8")

# What is not ours, and what only runs with it: it is parsed, not run.
FOREIGN_MODULES = ("gr00t", "diffusion_policy", "tensorflow_datasets", "webdataset", "zarr", "duckdb", "polars")
FOREIGN_PROGRAMS = (
    *("git", "rosdep", "colcon", "source", ".", "export", "alias", "docker", "kubectl", "aws", "find", "ls", "sudo"),
    *("xdg-open", "rviz2", "lerobot-train", "compute-sanitizer", "pytest", "cp", "cd", "sed"),
)
FOREIGN_YAML = ("ros__parameters:", "shape_meta:")  # parameters of nodes, Diffusion Policy
# Text in place of what the reader has: a name is defined elsewhere, a value is chosen by the reader.
GIVEN = {"policy", "preprocess", "train", "mean", "std", "weights", "obs", "frame", "TrainConfig", "pi0_config"}
GIVEN |= {"LeRobotLiftDataConfig", "AssetsConfig", "DataConfig", "h5py"}


class Block(NamedTuple):
    page: str
    line: int
    language: str
    code: str


def source_of(folder):
    """The Python source in a folder of the repository, or of a file."""
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    return "".join(file.read_text(encoding="utf-8") for file in files)


def blocks(page):
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        code = "".join(line.removeprefix(found[1]) for line in found[3].splitlines(keepends=True))
        yield Block(str(page.relative_to(ROOT)), text.count("\n", 0, found.start()) + 1, found[2], code)


BLOCKS = [block for page in PAGES for block in blocks(page)]


def of(*languages):
    chosen = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", chosen, ids=[f"{block.page}:{block.line}" for block in chosen])


def test_every_block_has_a_language_that_a_test_checks():
    known = {"bash", "python", "yaml", "json", "toml", "xml", "sql", "text"}  # text: output, and names of files
    assert [f"{block.page}:{block.line}" for block in BLOCKS if block.language not in known] == []


# Commands.


def commands(code):
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.shlex(re.sub(r"\$\([^)]*\)", "DIR", line), posix=True, punctuation_chars="|&;")
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, ";"]:
            if not word.strip("|&;"):
                if command:
                    yield command
                command = []
            elif command or not re.fullmatch(r"[A-Z_]+=.*", word):
                command.append(word)


def check_robocache(words):
    typer_main = pytest.importorskip("typer").main
    from robocache_ros.cli import commands as cli

    command, parents = typer_main.get_command(cli.app), []
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"no command {words[0]}"
        parents.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    if command.ignore_unknown_options or command.context_settings.get("ignore_unknown_options"):
        module, _, function = FORWARDED[parents[-1]].partition(":")
        getattr(importlib.import_module(module), function)().parse_args(words)
        return
    context = command.context_class(command, info_name=parents[-1] if parents else "robocache")
    given, rest, _ = command.make_parser(context).parse_args(args=list(words))
    assert rest == [], f"not taken: {rest}"
    for parameter in command.params:
        assert given.get(parameter.name) or not parameter.required, f"{parameter.opts[0]} is required"


FORWARDED = {
    "play": "robocache_ros.bags.player:parser",
    "record": "robocache_ros.cli.record:parser",
    "demo": "robocache_ros.cli.demo:parser",
    "sim": "robocache_ros.sim.command:parser",
}


def check_ros2(words):
    if words[0] == "robocache" or words[:3] == ["run", "robocache_ros", "robocache"]:
        check_robocache(words[words.index("robocache") + 1 :])
    elif words[:2] == ["run", "robocache_ros"]:
        assert f'"{words[2]} = ' in SETUP
        check_parameters(words)
    elif words[:2] == ["launch", "robocache_ros"]:
        launched = (ROOT / "launch" / words[2]).read_text(encoding="utf-8")
        assert [word for word in words[3:] if f'"{word.partition(":=")[0]}"' not in launched] == []
    elif words[0] in ("service", "topic", "param") and words[2].startswith("/") and words[2].count("/") > 1:
        assert words[2].rpartition("/")[2] in source_of(ROOT / "robocache_ros" / "nodes")


def check_parameters(words):
    for name in re.findall(r"-p (\w+):=", " ".join(words)):
        assert name in ("autostart", "use_sim_time") or f'"{name}"' in source_of(ROOT / "robocache_ros" / "nodes"), name


def check_python(words):
    """Options of a program in this repository occur in its source."""
    script = next((word for word in words if word.startswith("examples/")), None)
    if script is not None:
        source, words = source_of(ROOT / script), words[words.index(script) :]
    elif words[0] == "-m" and words[1].startswith(("robocache_ros.", "benchmarks", "test.")):
        source = source_of(ROOT / words[1].replace(".", "/"))
        check_parameters(words)
    else:
        assert words[0] in ("-m", "gr00t/experiment/launch_finetune.py", "test/soak.py"), words
        return
    fields = source + source_of(ROOT / "robocache_ros" / "training" / "training_options")
    for word in words:
        if word.startswith("--") and word not in ("--help", "--ros-args"):
            name = word.partition("=")[0]
            assert name in source or f"{name[2:].replace('-', '_')}:" in fields, f"no option {name}"


def check_make(words):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        assert "=" in word or re.search(rf"^{word}:|^\.PHONY:.* {word}\b", makefile, re.MULTILINE), f"no target {word}"


def check_pip(words):
    for word in words:
        if found := re.fullmatch(r"(?:\.|robocache_ros)\[([\w,]+)\]", word):
            assert [extra for extra in found[1].split(",") if f'"{extra}": ' not in SETUP] == []


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "robocache": check_robocache,
    "ros2": check_ros2,
    **dict.fromkeys(("python", "python3", ".venv/bin/python", "torchrun"), check_python),
    "make": check_make,
    "pip": check_pip,
}


@of("bash")
def test_commands_and_options_exist(block, monkeypatch):
    monkeypatch.chdir(ROOT)
    for program, *words in commands(block.code):
        if program in PROGRAMS:
            try:
                PROGRAMS[program](words)
            except SystemExit:
                pytest.fail(f"{program} {shlex.join(words)}: refused")
        else:
            assert program in FOREIGN_PROGRAMS, f"{program}: check it here, or name it as foreign"


# Python.


class Calls(ast.NodeVisitor):
    """Binds the calls of names that this package exports to their signatures."""

    def __init__(self, names):
        self.names = names

    def visit_Call(self, call):
        self.generic_visit(call)
        called = self.value(call.func)
        starred = any(isinstance(each, ast.Starred) for each in call.args) or any(k.arg is None for k in call.keywords)
        if called is not None and not starred:
            keywords = {str(keyword.arg): None for keyword in call.keywords}
            inspect.signature(called).bind(*[None] * len(call.args), **keywords)

    def value(self, node):
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := self.value(node.value)) is not None:
            return getattr(owner, node.attr)
        return None


def imported(tree):
    """The names that a block imports from this package; other imports are of installed or of foreign modules."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] not in FOREIGN_MODULES:
                    names[alias.asname or alias.name] = pytest.importorskip(alias.name)
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] not in FOREIGN_MODULES:
            try:
                module = pytest.importorskip(str(node.module))
            except RoboCacheError as error:  # message_filters is not on PyPI
                pytest.skip(str(error))
            names |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
    return {
        name: value
        for name, value in names.items()
        if str(getattr(value, "__module__", getattr(value, "__name__", ""))).startswith("robocache_ros")
    }


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if block.language == "python"}))
def test_python_blocks_import_and_call_what_exists(page):
    """The blocks of a page are one program: later ones use names of earlier ones."""
    names: dict[str, Any] = {}
    defined = {*dir(builtins), *GIVEN}
    for block in BLOCKS:
        if block.page == page and block.language == "python":
            tree = ast.parse(block.code, f"{page}:{block.line}")
            if page.endswith("read_ticks_in_a_policy.md"):
                pytest.importorskip("rclpy")
            names |= imported(tree)
            Calls(names).visit(tree)
            used = set()
            for node in ast.walk(tree):
                match node:
                    case ast.Import() | ast.ImportFrom():
                        defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
                    case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                        defined.add(name)
                    case ast.Name(id=name, ctx=ast.Store()):
                        defined.add(name)
                    case ast.Name(id=name, ctx=ast.Load()):
                        used.add(name)
            assert used - defined == set(), f"{page}:{block.line}"


# Pages whose Python runs as it stands, in a folder with the recording and its spec.
RUN = ("docs/reference/operations.md", "docs/tutorial/recording_to_policy.md")


@pytest.mark.parametrize("page", RUN)
def test_python_blocks_run(page, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code = [block.code for block in BLOCKS if block.page == page and block.language == "python"]
    exec(compile("\n".join(each for each in code if "FusedSubscriber" not in each), page, "exec"), {})


def test_a_dataset_of_ones_own_runs():
    [code] = [block.code for block in BLOCKS if block.language == "python" and "class OneEpisode" in block.code]
    names: dict[str, Any] = {}
    exec(compile(code, "train_on_public_datasets.md", "exec"), names)
    assert names["dataset"][0]["proprio"].shape == (21, 7)


# Other languages.


def merged(base, over):
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: merged(base.get(key), value) for key, value in over.items()}}
    return over


def whole_spec(part):
    """The spec of the demo with a part of another, whose streams with a topic take the place of those of that name."""
    base: dict[str, Any] = yaml.safe_load((ROOT / "config" / "panda_lift.yaml").read_text(encoding="utf-8"))
    if not part.keys() <= keys_of(FusionSpec, in_files=True).keys():
        one = next(iter(part.values()))
        part = {"streams": part} if "topic" in one and "type" in one else {"run": {"outputs": part}}
    for name, output in part.get("run", {}).get("outputs", {}).items():
        assert output.keys() <= keys_of(OutputSpec, in_files=True).keys()
        count = len(output.get("lower", output.get("names", [])))
        stream = {"topic": f"/{name}", "type": "sensor_msgs/msg/JointState", "align": "hold", "role": "action"}
        base["streams"][name] = {**stream, "names": [f"joint{i}" for i in range(1, count)] + ["gripper"]}
    for name, stream in part.get("streams", {}).items():
        if "topic" in stream:
            base["streams"].pop(name, None)
    return merged(base, part)  # type: ignore[no-any-return]


@of("yaml")
def test_specs_layouts_and_manifests_are_valid(block, tmp_path):
    contents = yaml.safe_load(block.code)
    path = tmp_path / "block.yaml"
    path.write_text(block.code, encoding="utf-8")
    if isinstance(contents, list):
        from robocache_ros.exporter.recordings import load_manifest

        for row in contents:
            row.setdefault("recording", "day1/lift_01")
            row["recording"] = row["recording"].replace("*", "01")
            (tmp_path / row["recording"]).mkdir(parents=True, exist_ok=True)
            (tmp_path / row["recording"] / "lift.mcap").touch()
        path.write_text(yaml.safe_dump(contents), encoding="utf-8")
        assert len(load_manifest(path)) == len(contents)
    elif "datasets" in contents:
        from robocache_ros.datasets.mixture import load_layout

        assert load_layout(path)
    elif "robocache" in contents:
        assert load_spec(path).streams
    elif not any(key in block.code for key in FOREIGN_YAML):
        assert load_spec(whole_spec(contents)).streams


@of("json", "xml")
def test_json_and_xml_are_valid(block):
    {"json": json.loads, "xml": ElementTree.fromstring}[block.language](block.code)


@of("toml")
def test_entry_points_have_the_names_of_groups_that_are_read(block):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    for group in tomllib.loads(block.code)["project"]["entry-points"]:
        assert f'"{group}"' in source_of(ROOT / "robocache_ros")


def test_the_links_of_the_site_are_checked(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="sub/b.html#here"></a><a href="#top"></a>')
    (tmp_path / "sub" / "b.html").write_text('<a href="../a.html#gone"></a><img src="no.png"><a href="https://x.y/z">')
    assert runpy.run_path(str(ROOT / "docs" / "check_links.py"))["broken"](tmp_path) == [
        "a.html: sub/b.html#here: no such heading",
        "sub/b.html: ../a.html#gone: no such heading",
        "sub/b.html: no.png: no such file",
    ]
