"""Replaying recorded logs: agreement with vLLM, and what is said where there is none."""

import json
import re
import shutil

import pytest
from _logs import ENGINE_LOG, SCHEDULER_LOG, V1_LOG, error_of, lines_of, write
from _record_logs import LOGS, TRACE, logs, text_of, trace_lines
from helpers import SHARED, VLLM, needs

import policies
import sim.verify.engine
from sim.cost import LinearCost
from sim.errors import UsageError
from sim.verify import verify

GOLDENS = SHARED / "goldens"


@pytest.mark.parametrize("log", [V1_LOG, SCHEDULER_LOG, ENGINE_LOG], ids=lambda path: path.stem)
def test_the_fast_engine_is_really_asked(log, tmp_path):
    lines = lines_of(log)
    # Another pool or token budget than recorded: both engines go astray, and in the same way.
    lines[0]["num_blocks"] -= 3
    lines[0]["max_num_batched_tokens"] = 7
    path = write(tmp_path / "log.jsonl", lines)
    plain, fast = (verify([path], traces=TRACE.parent, fast=fast) for fast in (False, True))
    assert fast.num_diverging == 1
    assert fast.divergences == plain.divergences
    assert fast.num_without_fast == 0


# Agreement


@needs(GOLDENS)
@pytest.mark.parametrize(
    ("folder", "num_files"), [("allocator", 100), ("scheduler", 32)], ids=["allocator", "scheduler"]
)
@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
def test_vllms_block_managers_and_scheduler_agree(folder, num_files, fast):
    outcome = verify([GOLDENS / folder], fast=fast)
    # V0 has no compiled form.
    assert outcome.num_without_fast == (50 if fast and folder == "allocator" else 0)
    assert outcome.errors == []
    assert [str(divergence) for divergence in outcome.divergences] == []
    assert (outcome.num_files, outcome.num_agreeing) == (num_files, num_files)


@needs(GOLDENS)
@pytest.mark.parametrize(
    "name",
    ["conversation-b16", "conversation-b512-longprefill", "conversation-nocache", "synthetic-b64"],
)
@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
def test_vllms_engine_agrees(name, fast):
    outcome = verify([GOLDENS / "engine" / f"{name}.jsonl"], traces=SHARED / "traces", fast=fast)
    assert outcome.errors == []
    assert [str(divergence) for divergence in outcome.divergences] == []
    assert outcome.num_agreeing == 1


@needs(GOLDENS)
def test_no_engine_log_is_left_out():
    assert len(list((GOLDENS / "engine").glob("*.jsonl"))) == 4


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
def test_the_fixtures_agree(fast):
    outcome = verify([LOGS], fast=fast)
    assert outcome.errors == []
    assert [str(divergence) for divergence in outcome.divergences] == []
    assert (outcome.num_files, outcome.num_agreeing) == (6, 6)


def test_a_log_that_is_named_twice_counts_once(tmp_path):
    (tmp_path / "again.jsonl").symlink_to(min(LOGS.glob("*.jsonl")))
    outcome = verify([LOGS, min(LOGS.glob("*.jsonl")), LOGS / ".." / LOGS.name, tmp_path])
    assert (outcome.num_files, outcome.num_agreeing) == (6, 6)


def test_the_fixtures_are_what_is_recorded_now():
    assert TRACE.read_text(encoding="utf-8") == text_of(trace_lines())
    on_disk = {path.name: path.read_text(encoding="utf-8") for path in LOGS.iterdir()}
    assert on_disk == logs()


def test_traces_are_found_beside_the_logs_and_where_told(tmp_path):
    shutil.copy(ENGINE_LOG, tmp_path)
    shutil.copy(TRACE, tmp_path)
    assert verify([tmp_path / ENGINE_LOG.name]).num_agreeing == 1
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / TRACE.name).rename(elsewhere / TRACE.name)
    assert verify([tmp_path / ENGINE_LOG.name], traces=elsewhere).num_agreeing == 1


def test_a_byte_order_mark_blank_lines_and_crlf_do_not_matter(tmp_path):
    text = V1_LOG.read_text(encoding="utf-8").replace("\n", "\r\n\r\n")
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert verify([path]).num_agreeing == 1


def test_caching_that_was_off_is_replayed_without(tmp_path):
    config, *lines = lines_of(SCHEDULER_LOG)
    config["enable_prefix_caching"] = False
    outcome = verify([write(tmp_path / "log.jsonl", [config, *lines])])
    # The record had hits: r1 was admitted with 8 tokens hit in step 1.
    first = outcome.divergences[0]
    assert (first.field, first.expected["r1"], first.got["r1"]) == ("num_scheduled_tokens", 1, 4)


# Divergence


def test_a_tampered_field_is_named_with_file_line_field_and_both_values(tmp_path):
    lines = lines_of(V1_LOG)
    lines[1]["expect"]["num_free_blocks"] = 6
    path = write(tmp_path / "log.jsonl", lines)
    outcome = verify([path])
    (divergence,) = outcome.divergences
    assert (divergence.file, divergence.line) == (str(path), 2)
    assert divergence.field == "num_free_blocks"
    assert (divergence.expected, divergence.got) == (6, 5)
    assert str(divergence) == f"{path}:2: num_free_blocks: expected 6, got 5"
    assert (outcome.num_agreeing, outcome.num_diverging, outcome.errors) == (0, 1, [])


def test_all_tampered_lines_are_named(tmp_path):
    lines = lines_of(V1_LOG)
    lines[4]["expect"]["block_table"] = [1, 2, 6]
    lines[8]["expect"]["free_queue"].reverse()
    lines[8]["expect"]["status"] = "LATER"
    path = write(tmp_path / "log.jsonl", lines)
    outcome = verify([path])
    named = [(d.line, d.field, d.expected, d.got) for d in outcome.divergences]
    assert named == [
        (5, "block_table", [1, 2, 6], [1, 2, 5]),
        (9, "status", "LATER", "OK"),
        (9, "free_queue", [1, 2, 5, 3, 4], [4, 3, 5, 2, 1]),
    ]
    assert outcome.num_diverging == 1


def test_line_numbers_count_blank_lines_as_an_editor_does(tmp_path):
    lines = lines_of(V1_LOG)
    lines[1]["expect"]["num_free_blocks"] = 6
    path = tmp_path / "log.jsonl"
    path.write_text(text_of(lines).replace("\n", "\n\n"), encoding="utf-8")
    assert verify([path]).divergences[0].line == 3


def test_a_tampered_initial_state_is_named(tmp_path):
    lines = lines_of(V1_LOG)
    lines[0]["initial"]["num_free_blocks"] = 9
    (divergence,) = verify([write(tmp_path / "log.jsonl", lines)]).divergences
    assert (divergence.line, divergence.field, divergence.expected) == (1, "num_free_blocks", 9)


def test_a_field_that_no_policy_has_is_named(tmp_path):
    lines = lines_of(V1_LOG)
    lines[1]["expect"]["evictor"] = []
    (divergence,) = verify([write(tmp_path / "log.jsonl", lines)]).divergences
    assert (divergence.line, divergence.field, divergence.got) == (2, "evictor", "nothing")


def test_a_tampered_scheduler_step_is_named(tmp_path):
    lines = lines_of(SCHEDULER_LOG)
    number, step = next((i, x) for i, x in enumerate(lines, start=1) if x.get("preempted"))
    step["preempted"] = []
    step["num_scheduled_tokens"]["r0"] = 2
    outcome = verify([write(tmp_path / "log.jsonl", lines)])
    named = [(d.line, d.field, d.expected, d.got) for d in outcome.divergences]
    assert named == [
        (number, "num_scheduled_tokens", {"r0": 2, "r1": 1}, {"r0": 1, "r1": 1}),
        (number, "preempted", [], ["r2"]),
    ]


def test_a_tampered_engine_request_and_summary_are_named(tmp_path):
    lines = lines_of(ENGINE_LOG)
    lines[3]["num_cached_tokens"] = 1280
    lines[-1]["steps"] += 1
    path = write(tmp_path / "log.jsonl", lines)
    outcome = verify([path], traces=TRACE.parent)
    named = [(d.line, d.field, d.expected, d.got) for d in outcome.divergences]
    assert named == [(4, "num_cached_tokens", 1280, 1296), (7, "steps", 14, 13)]


def test_one_bad_file_does_not_hide_the_others(tmp_path):
    shutil.copy(V1_LOG, tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text("{", encoding="utf-8")
    tampered = lines_of(V1_LOG)
    tampered[1]["expect"]["num_free_blocks"] = 6
    write(tmp_path / "c.jsonl", tampered)
    seen = {}
    outcome = verify([tmp_path], on_file=lambda path, found: seen.update({path.name: len(found)}))
    assert (outcome.num_files, outcome.num_agreeing, outcome.num_diverging) == (3, 1, 1)
    assert len(outcome.errors) == 1
    assert seen == {"a.jsonl": 0, "c.jsonl": 1}
    document = json.loads(json.dumps(outcome.to_json()))
    assert (document["files"], document["agree"], document["diverge"]) == (3, 1, 1)
    assert document["divergences"] == [
        {
            "file": str(tmp_path / "c.jsonl"),
            "line": 2,
            "field": "num_free_blocks",
            "expected": 6,
            "got": 5,
        }
    ]
    assert document["errors"] == outcome.errors


WRONG = ["none", *VLLM, "fifo", "sglang_radix"]


@pytest.mark.parametrize("policy", WRONG)
def test_a_wrong_policy_diverges_and_nothing_worse(policy):
    outcome = verify([LOGS], policy=policy)
    assert outcome.errors == []
    for log in LOGS.glob("allocator-*.jsonl"):
        own = log.stem == f"allocator-{policy}"
        diverging = any(divergence.file == str(log) for divergence in outcome.divergences)
        assert diverging != own


@needs(GOLDENS)
@pytest.mark.parametrize("policy", WRONG)
def test_a_wrong_policy_diverges_from_vllm_and_nothing_worse(policy):
    outcome = verify([GOLDENS / "allocator", GOLDENS / "scheduler"], policy=policy)
    assert outcome.errors == []
    assert outcome.num_agreeing + outcome.num_diverging == 132
    assert outcome.num_diverging > 0


# Errors


def test_an_unknown_variant_names_the_known(tmp_path):
    config, *lines = lines_of(V1_LOG)
    config["variant"] = "v2-1.0"
    error = error_of(tmp_path / "log.jsonl", text_of([config, *lines]))
    assert "'v2-1.0'" in error
    assert ", ".join(sorted(policies.variants())) in error
    assert "--policy" in error
    # With a policy named, the variant no longer matters.
    assert verify([tmp_path / "log.jsonl"], policy="vllm_v1").num_agreeing == 1


def test_a_missing_trace_names_the_option(tmp_path):
    error = error_of(tmp_path / "log.jsonl", ENGINE_LOG.read_text(encoding="utf-8"))
    assert "'tiny.jsonl'" in error
    assert "--traces" in error
    error = error_of(tmp_path / "log.jsonl", traces=tmp_path)
    assert str(tmp_path) in error
    assert "--traces" in error


def test_a_trace_that_is_too_short(tmp_path):
    """The log asks for rows 1 to 5, and of the trace only rows 0 to 3 are left."""
    write(tmp_path / TRACE.name, lines_of(TRACE)[:4])
    error = error_of(tmp_path / "log.jsonl", ENGINE_LOG.read_text(encoding="utf-8"))
    assert ":1: requests 1 to 6 are asked for" in error
    assert f"{tmp_path / TRACE.name} has 4; give the trace that was recorded." in error


def test_what_is_no_json(tmp_path):
    rows = V1_LOG.read_text(encoding="utf-8").splitlines()
    rows[2] = rows[2][:40]
    error = error_of(tmp_path / "log.jsonl", "\n".join(rows))
    assert error.startswith(f"{tmp_path / 'log.jsonl'}:3: not JSON")


def test_what_is_json_and_no_object(tmp_path):
    assert ":1: list instead of an object" in error_of(tmp_path / "log.jsonl", "[1, 2]\n")


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff"])
def test_an_empty_file(tmp_path, text):
    assert "is empty" in error_of(tmp_path / "log.jsonl", text)


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b"\xff\xfe\x00\x80")
    assert "cannot be read" in error_of(tmp_path / "log.jsonl")


def test_a_configuration_and_nothing_else(tmp_path):
    config = lines_of(V1_LOG)[0]
    assert "docs/recorded-logs.md" in error_of(tmp_path / "log.jsonl", text_of([config]))


@pytest.mark.parametrize("key", ["variant", "block_size", "num_blocks"])
def test_a_configuration_without_a_setting(tmp_path, key):
    config, *lines = lines_of(V1_LOG)
    del config[key]
    error = error_of(tmp_path / "log.jsonl", text_of([config, *lines]))
    assert f":1: the configuration has no '{key}'" in error


@pytest.mark.parametrize("key", ["request", "expect"])
def test_an_operation_without_a_field(tmp_path, key):
    lines = lines_of(V1_LOG)
    del lines[3][key]
    error = error_of(tmp_path / "log.jsonl", text_of(lines))
    assert f":4: the operation has no '{key}'" in error


def test_an_unknown_operation(tmp_path):
    lines = lines_of(V1_LOG)
    lines[3]["op"] = "steal"
    error = error_of(tmp_path / "log.jsonl", text_of(lines))
    assert ":4: operation 'steal' is unknown" in error
    assert "allocate, append, extend, free" in error


def test_paths_that_hold_nothing(tmp_path):
    with pytest.raises(UsageError, match=r"holds no \.jsonl file"):
        verify([tmp_path])
    with pytest.raises(UsageError, match="does not exist"):
        verify([tmp_path / "nowhere"])
    with pytest.raises(UsageError, match="cannot be read"):
        verify([tmp_path / ("a" * 5000)])


def test_a_policy_that_does_not_exist():
    with pytest.raises(UsageError, match=re.escape("vllm_v1_latest")):
        verify([LOGS], policy="vllm_v9")


class CappedCost(LinearCost):
    """Stops a replay that would never end."""

    num_steps = 0

    def step_ns(self, batch):
        CappedCost.num_steps += 1
        assert CappedCost.num_steps < 10_000, "the replay does not end"
        return super().step_ns(batch)


@pytest.fixture
def capped(monkeypatch):
    monkeypatch.setattr(sim.verify.engine, "LinearCost", CappedCost)
    return CappedCost


@pytest.mark.parametrize(
    ("log", "key"),
    [
        (V1_LOG, "block_size"),
        (SCHEDULER_LOG, "block_size"),
        (ENGINE_LOG, "block_size"),
        (ENGINE_LOG, "max_num_seqs"),
        (ENGINE_LOG, "max_num_batched_tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.stem,
)
def test_a_limit_of_zero_is_an_error(tmp_path, capped, log, key):
    capped.num_steps = 0
    config, *lines = lines_of(log)
    config[key] = 0
    text = text_of([config, *lines])
    assert key in error_of(tmp_path / "log.jsonl", text, traces=TRACE.parent)


@pytest.mark.parametrize("log", [SCHEDULER_LOG, ENGINE_LOG], ids=lambda log: log.stem)
def test_a_line_of_unknown_kind_is_not_passed_over(tmp_path, log):
    """Otherwise a record with a misspelt kind would agree without being compared."""
    lines = lines_of(log)
    lines[-1]["kind"] = "sumary"
    error = error_of(tmp_path / "log.jsonl", text_of(lines), traces=TRACE.parent)
    assert f":{len(lines)}:" in error
    assert "'sumary'" in error


def test_a_policy_from_outside_that_raises_is_named(prefixsim, tmp_path, monkeypatch):
    (tmp_path / "raising_policy.py").write_text(
        "from policies.vllm_v1 import VllmV1\n\n\n"
        "class Raising(VllmV1):\n"
        "    def free(self, seq):\n"
        "        raise RuntimeError('boom')\n"
    )
    monkeypatch.chdir(tmp_path)
    code, out, err = prefixsim("verify", V1_LOG, "--policy", "raising_policy:Raising")
    assert code == 2
    assert "'raising_policy:Raising': free raised RuntimeError: boom" in err
    assert out.endswith("verified 1 files: 0 agree, 0 diverge, 1 not replayed\n")
