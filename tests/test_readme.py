"""The README says what the code does: tables, commands, policies."""

import json
import re
import shlex
from pathlib import Path

import pytest

import policies
from sim import cli
from sim.columns import COLUMNS, columns_of
from sim.config import option_name, setting_of, settings
from sim.experiment import check
from sim.grid import expand, read_axes

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def columns_table(table):
    rows = [f"| `{c.name}` | {c.dtype} | {c.unit} | {c.meaning} |" for c in columns_of(table)]
    return "\n".join(["| column | type | unit | meaning |", "| --- | --- | --- | --- |", *rows])


def settings_table():
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    for field in settings():
        if field.name == "workload":
            continue
        default = "" if field.default is None else f"`{str(field.default).lower()}`"
        rows.append(f"| `{option_name(field.name)}` | {default} | {setting_of(field).help} |")
    return "\n".join(rows)


@pytest.mark.parametrize("table", ["summary", "requests", "steps", "curve"])
def test_every_column_is_in_the_readme(table):
    assert columns_table(table) in README


def test_every_setting_is_in_the_readme():
    assert settings_table() in README


def test_every_policy_is_in_the_readme():
    section = README.split("## Policies")[1].split("## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(listed) == policies.names()


def test_columns_have_distinct_names_within_their_table():
    names = [(column.table, column.name) for column in COLUMNS]
    assert len(names) == len(set(names))


def commands():
    """Commands of the README's console blocks, continued lines joined."""
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "prefixsim":
                yield words[1:]


def python_blocks():
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_every_command_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"timestamp": t, "input_length": 1200, "output_length": 3, "hash_ids": [0, i, 10 + t]}
        for t, i in enumerate([1, 1, 2, 2, 1] * 12)
    ]
    for name in ("trace.jsonl", "conversation_trace.jsonl"):
        Path(name).write_text("\n".join(map(json.dumps, rows)))
    Path("my_package").mkdir()
    Path("my_package/my_module.py").write_text(
        "from policies.vllm_v1 import VllmV1\n\n\n"
        "class MyPolicy(VllmV1):\n"
        "    def __init__(self, num_blocks, block_size, clock, *, window=4):\n"
        "        super().__init__(num_blocks, block_size, clock)\n"
    )
    (walk_through,) = (block for block in python_blocks() if "POLICY = " in block)
    assert 20 <= len(walk_through.splitlines()) <= 60
    Path("deepest_first.py").write_text(walk_through)
    # The grids of examples/ take a minute each; that they are grids is tested below.
    skipped = ("examples/", "alpha", "even")
    ran = [args for args in commands() if not args[1].startswith(skipped)]
    assert len(ran) >= 7
    for args in ran:
        with pytest.raises(SystemExit) as ended:
            cli.main(args)
        assert ended.value.code == 0, (args, capsys.readouterr().err)


def test_the_python_of_the_readme_runs():
    (block,) = (block for block in python_blocks() if "import sim\n" in block)
    names = {}
    exec(block, names)
    assert names["run"]["hit_rate"] > 0
    assert len(names["results"].summary) == 6


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.stem)
def test_every_example_is_a_grid_that_can_run(path):
    configs = expand(read_axes(path))
    assert len(configs) >= 25
    for config in configs:
        check(config)


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
