"""What a shell is offered, through the protocol by which shells ask."""

import inspect
import os
import subprocess
import sys

import pytest
import typer

import policies
from gpu_backend.shape import PRESETS
from sim import cli
from sim.cli import completion
from sim.presets import list_presets
from workloads import FORMATS, GENERATORS


@pytest.fixture
def offered(monkeypatch, capsys):
    """Type a line, the last word of which is to be completed, and see what bash is offered."""

    def ask(line):
        words = line.split(" ")
        monkeypatch.setenv("_PREFIXSIM_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        with pytest.raises(SystemExit) as ended:
            cli.main([])
        assert not ended.value.code
        said = capsys.readouterr()
        assert said.err == ""
        return said.out.split()

    return ask


def test_commands_and_options(offered):
    assert offered("prefixsim pol") == ["policies"]
    assert offered("prefixsim workload ge") == ["generators"]
    assert offered("prefixsim run --max-num-s") == ["--max-num-seqs"]
    # Of those that stand on the line already, none is offered again.
    assert "--policy" not in offered("prefixsim run --policy none --pol")


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("prefixsim run ", GENERATORS),
        ("prefixsim explain ", GENERATORS),
        ("prefixsim sweep --workload ", GENERATORS),
        ("prefixsim run x --policy ", policies.names()),
        ("prefixsim sweep --policy ", policies.names()),
        ("prefixsim verify --policy ", policies.names()),
        ("prefixsim overhead --policy ", policies.names()),
        ("prefixsim run x --model ", dict(list_presets())),
        ("prefixsim workload describe x --model ", dict(list_presets())),
        ("prefixsim run x --format ", ["auto", *FORMATS]),
        ("prefixsim workload check x --format ", ["auto", *FORMATS]),
        ("prefixsim prove x --decoder ", PRESETS),
        ("prefixsim calibrate --model ", PRESETS),
        ("prefixsim curve x --policy ", ["vllm_v1", "vllm_v1_latest"]),
        ("prefixsim plot x --kind ", ["capacity", "block-size", "ttft", "overhead", "break-even"]),
        ("prefixsim workload write x --to ", ["mooncake", "bailian", "tokens"]),
        ("prefixsim run x --engine ", ["plain", "fast", "auto"]),
    ],
)
def test_values(line, names, offered):
    assert sorted(offered(line)) == sorted(names)


def test_values_by_their_beginning(offered):
    assert offered("prefixsim run x --gpu h") == ["h100", "h200"]
    assert offered("prefixsim run sh") == ["shared-prefix"]
    # Files, which the shell offers itself.
    assert offered("prefixsim run trace.js") == []
    assert offered("prefixsim run x --overhead own-n") == ["own-none"]


def test_lists_are_completed_at_their_end(offered):
    assert offered("prefixsim sweep --policy none,vllm_v0_") == ["none,vllm_v0_scan"]
    assert "none,none" not in offered("prefixsim sweep --policy none,no")
    assert offered("prefixsim explain x --policy vllm_v1,vllm_v0_") == ["vllm_v1,vllm_v0_scan"]


def options(command):
    for child in getattr(command, "commands", {}).values():
        yield from options(child)
    yield from command.params


def test_whatever_is_one_of_a_few_is_offered():
    for parameter in options(typer.main.get_command(cli.make_app())):
        metavar = parameter.metavar or ""
        if "|" in metavar and not metavar.startswith("["):
            assert parameter._custom_shell_complete is not None, parameter.opts


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_us(shell):
    # Which shell it is, is told from the process that asks.
    shown = subprocess.run(
        [sys.executable, "-m", "sim"],
        env={**os.environ, "_PREFIXSIM_COMPLETE": f"source_{shell}"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "_PREFIXSIM_COMPLETE" in shown.stdout
    assert "prefixsim" in shown.stdout


def test_every_source_of_names_has_some():
    functions = inspect.getmembers(completion, inspect.isfunction)
    sources = [f for name, f in functions if name not in ("one_of", "some_of", "these")]
    assert len(sources) == 6
    assert all(list(source()) for source in sources)
