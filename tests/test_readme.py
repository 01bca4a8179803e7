"""README and documentation say what the code does: tables, commands, policies."""

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import _tables
import pytest
import typer
from helpers import SHARED

import policies
from sim import cli
from sim.columns import COLUMNS
from sim.experiment import check
from sim.grid import expand, read_axes
from workloads import GENERATORS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("table", _tables.PLACES)
def test_every_setting_and_column_is_in_its_table(table):
    page = _tables.PLACES[table].read_text(encoding="utf-8")
    assert page == _tables.with_table(page, table), "write it anew: python tests/_tables.py"


def test_every_policy_is_in_the_readme():
    section = README.split("## Policies")[1].split("## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(listed) == policies.names()


def test_columns_have_distinct_names_within_their_table():
    names = [(column.table, column.name) for column in COLUMNS]
    assert len(names) == len(set(names))


def test_the_policy_of_the_readme_is_short_and_the_only_one():
    (walk_through,) = walk_throughs()
    assert 20 <= len(walk_through.splitlines()) <= 60


def walk_throughs():
    return [block for block in python_blocks(ROOT / "README.md") if "POLICY = " in block]


def commands_of(page):
    """Commands of a page's console blocks, continued lines joined."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "prefixsim":
                found.append(words[1:])
    return found


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

NOT_RUN = (
    "examples/", "demo/", "alpha", "even", "weka_710", "dask", "ray", "--install-completion",
)  # fmt: skip
"""Grids of a minute and more, tried below, what draws them, a trace of hours, clusters, and what
changes the home folder."""

SMALL_GRID = ("--max-tokens", "64", "--max-context", "128", "--max-batch", "4", "--passes", "1")
QUICKER = {
    "calibrate": ("--model", "tiny", *SMALL_GRID),
    "overhead": (
        "--repetitions",
        "1",
        "--block-sizes",
        "16,64",
        "--prompt-tokens",
        "1024",
        "--hit-rates",
        "0,0.5",
    ),
    "prove": ("--decoder", "tiny"),
    "sweep": ("--jobs", "1"),
    "compare": ("--jobs", "1", "--policy", "arc,mq"),
    "report": ("--jobs", "1"),
}
"""Options that a command is given on top, the last of which counts, so that it takes seconds."""


def needs_torch(args):
    """Whether a command runs a decoder, or takes the cost that one was measured to have."""
    return args[0] == "prove" or ("cost.json" in args and "--from" not in args)


def quicker(args):
    args = list(args)
    if "--from" in args:
        return args
    if "--free-blocks" in args:
        return [*args, "--free-blocks", "1000"]
    if args[:2] == ["prove", "shared-prefix"]:
        args += ["--workload-arg", "prompt=64", "--workload-arg", "output=4"]
    elif args[0] == "prove":
        args += ["--num-requests", "12"]
    elif "--seeds" in args:
        args += ["--seeds", "2", "--num-requests", "40"]
    return [*args, *QUICKER.get(args[0], ())]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with all that the commands of the documentation name."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"timestamp": t, "input_length": 1200, "output_length": 3, "hash_ids": [0, i, 10 + t]}
        for t, i in enumerate([1, 1, 2, 2, 1] * 12)
    ]
    for name in ("trace.jsonl", "conversation_trace.jsonl", "synthetic_trace.jsonl"):
        Path(name).write_text("\n".join(map(json.dumps, rows)))
    Path("my_package").mkdir()
    Path("my_package/my_module.py").write_text(
        "from policies.vllm_v1 import VllmV1\n\n\n"
        "class MyPolicy(VllmV1):\n"
        "    def __init__(self, num_blocks, block_size, clock, *, window=4):\n"
        "        super().__init__(num_blocks, block_size, clock)\n"
    )
    Path("deepest_first.py").write_text(walk_throughs()[0])
    for name in ("logs", "traces"):
        target = "goldens" if name == "logs" else name
        Path(target).symlink_to(ROOT / "tests" / "data" / name)
    Path("steps.csv").write_text(steps())
    Path("grid.toml").write_text('workload = "trace.jsonl"\npolicy = ["none", "vllm_v1"]\n')
    if RECORDED_RUN.exists():
        Path("DIR").symlink_to(RECORDED_RUN.resolve())
    return tmp_path


RECORDED_RUN = SHARED / "measurements" / "vllm_0.19_rtx4090_llama-3.1-8b"


def steps():
    """Times of steps as others may have measured them."""
    lines = ["new_tokens,cached_tokens,batch,seconds"]
    for batch in (1, 4):
        for new in (1, 64, 512, 2048):
            for cached in (0, 1024, 4096):
                seconds = 0.005 + 2e-5 * new * batch + 1e-8 * (new + cached) * batch
                lines.append(f"{new},{cached},{batch},{seconds}")
    return "\n".join(lines)


def test_every_command_of_the_documentation_runs(home, capsys):
    told = [tuple(args) for page in PAGES for args in commands_of(page)]
    ran = [args for args in dict.fromkeys(told) if not any(a.startswith(NOT_RUN) for a in args)]
    assert len(ran) >= 40
    if not RECORDED_RUN.exists():
        ran.remove(("validate", "DIR"))
    if find_spec("torch") is None:
        ran = [args for args in ran if not needs_torch(args)]
    for args in ran:
        with pytest.raises(SystemExit) as ended:
            cli.main(quicker(args))
        assert ended.value.code == 0, (args, capsys.readouterr().err)


def test_the_python_of_the_documentation_runs():
    (block,) = python_blocks(ROOT / "docs" / "python.md")
    names = {}
    exec(block, names)
    assert names["run"]["hit_rate"] > 0
    assert len(names["results"].summary) == 6


def test_every_command_is_in_the_list():
    def names(command, name):
        children = getattr(command, "commands", None)
        if children is None:
            return [name]
        return [n for key, child in children.items() for n in names(child, f"{name} {key}")]

    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(prefixsim [\w ]+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(names(typer.main.get_command(cli.make_app()), "prefixsim"))


def test_every_generator_is_in_the_list():
    page = (ROOT / "docs" / "workloads.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE) == list(GENERATORS)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.stem)
def test_every_example_is_a_grid_that_can_run(path):
    configs = expand(read_axes(path))
    assert len(configs) >= 25
    for config in configs:
        check(config)
