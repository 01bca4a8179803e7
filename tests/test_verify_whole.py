"""A log agrees only if all of it was there to be compared, and every field is what it should be."""

import copy
import json
import shutil

import pytest
from _logs import ENGINE_LOG, SCHEDULER_LOG, V0_LOG, V1_LOG, error_of, lines_of, write
from _record_logs import LOGS, TRACE, text_of
from helpers import SHARED, needs

from sim.verify import verify

GOLDENS = SHARED / "goldens"
ALL_LOGS = sorted(LOGS.iterdir())


def outcome_of(path, lines, **options):
    outcome = verify([write(path, lines)], traces=TRACE.parent, **options)
    assert outcome.num_files == 1
    return outcome


def refused(path, lines):
    """Return what is said of lines that cannot be replayed, without the name of the file."""
    error = error_of(path, text_of(lines), traces=TRACE.parent)
    return error.removeprefix(f"{path}:")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def only(names, line):
    return {name: value for name, value in line.items() if name in names}


def moved(lines, source, target):
    lines = list(lines)
    lines.insert(target, lines.pop(source))
    return lines


# Files that are not whole. Each takes the lines of a fixture, of which line 1 is lines[0].

NOT_WHOLE = {
    "engine: only the configuration": (
        ENGINE_LOG,
        lambda lines: lines[:1],
        "1: count is 5 and 0 lines are of kind 'request': index 1 is missing",
    ),
    "engine: half of the requests": (
        ENGINE_LOG,
        lambda lines: [*lines[:3], lines[6]],
        "1: count is 5 and 2 lines are of kind 'request': index 3 is missing",
    ),
    "engine: a request dropped": (
        ENGINE_LOG,
        lambda lines: lines[:3] + lines[4:],
        "1: count is 5 and 4 lines are of kind 'request': index 3 is missing",
    ),
    "engine: a request twice": (
        ENGINE_LOG,
        lambda lines: [*lines[:4], lines[3], *lines[4:]],
        "5: index 3 stands a second time, after line 4",
    ),
    "engine: one request in place of another": (
        ENGINE_LOG,
        lambda lines: [*lines[:4], lines[3], *lines[5:]],
        "5: index 3 stands a second time, after line 4",
    ),
    "engine: a request outside the slice": (
        ENGINE_LOG,
        lambda lines: [*lines[:5], {**lines[5], "index": 6}, lines[6]],
        "6: index 6 is outside the slice 1 to 6",
    ),
    "engine: a request with its index and nothing else": (
        ENGINE_LOG,
        lambda lines: [*lines[:3], only(("kind", "index"), lines[3]), *lines[4:]],
        "4: the request has no 'arrival_ns'",
    ),
    "engine: no summary": (
        ENGINE_LOG,
        lambda lines: lines[:-1],
        "6: the last line is not of kind 'summary'",
    ),
    "engine: two summaries": (
        ENGINE_LOG,
        lambda lines: [*lines, lines[-1]],
        "7: a line of kind 'summary' stands before the last line",
    ),
    "engine: the summary first": (
        ENGINE_LOG,
        lambda lines: moved(lines, 6, 1),
        "7: the last line is not of kind 'summary'",
    ),
    "engine: a summary of nothing": (
        ENGINE_LOG,
        lambda lines: [*lines[:-1], {"kind": "summary"}],
        "7: the summary has no 'steps'",
    ),
    "scheduler: only the configuration": (
        SCHEDULER_LOG,
        lambda lines: lines[:1],
        "1: only the configuration is here, and nothing to replay",
    ),
    "scheduler: no steps": (
        SCHEDULER_LOG,
        lambda lines: lines[:7],
        "7: there is no line of kind 'step'",
    ),
    "scheduler: no requests": (
        SCHEDULER_LOG,
        lambda lines: [lines[0], {**lines[7], "added": [], **{field: {} for field in BY_REQUEST}}],
        "2: there is no line of kind 'request'",
    ),
    "scheduler: cut in half": (
        SCHEDULER_LOG,
        lambda lines: lines[:17],
        "17: the last step, 10, leaves 5 requests running or waiting",
    ),
    "scheduler: cut before a request arrives": (
        SCHEDULER_LOG,
        lambda lines: lines[:12],
        "7: request 'r5' arrives at step 9, and that step is missing",
    ),
    "scheduler: the first step dropped": (
        SCHEDULER_LOG,
        lambda lines: lines[:7] + lines[8:],
        "2: request 'r0' arrives at step 1, and that step is missing",
    ),
    "scheduler: a step dropped": (
        SCHEDULER_LOG,
        lambda lines: lines[:9] + lines[10:],
        "10: step 3 is missing, though step 2 leaves 3 requests running or waiting",
    ),
    "scheduler: a step twice": (
        SCHEDULER_LOG,
        lambda lines: [*lines, lines[-1]],
        "26: step 18 comes after step 18, and must be later",
    ),
    "scheduler: steps out of order": (
        SCHEDULER_LOG,
        lambda lines: [*lines, lines[-2]],
        "26: step 17 comes after step 18, and must be later",
    ),
    "scheduler: a request dropped": (
        SCHEDULER_LOG,
        lambda lines: lines[:2] + lines[3:],
        "7: added of the step names 'r1', which no line of kind 'request' describes",
    ),
    "scheduler: a request twice": (
        SCHEDULER_LOG,
        lambda lines: [*lines[:3], lines[2], *lines[3:]],
        "4: request 'r1' is described a second time, after line 3",
    ),
    "allocator: only the configuration": (
        V1_LOG,
        lambda lines: lines[:1],
        "1: only the configuration is here, and nothing to replay",
    ),
    "allocator: append without an allocate": (
        V1_LOG,
        lambda lines: [lines[0], *lines[2:]],
        "2: append of request 'a', which no line before has left live",
    ),
    "allocator: free without an allocate": (
        V1_LOG,
        lambda lines: [*lines[:2], {**lines[6], "request": "z"}],
        "3: free of request 'z', which no line before has left live",
    ),
    "allocator: extend after the end": (
        V1_LOG,
        lambda lines: [*lines, {**lines[-2], "now": 99.0}],
        f"{len(lines_of(V1_LOG)) + 1}: extend of request 'g', which no line before has left live",
    ),
    "allocator: append to what was refused": (
        V1_LOG,
        lambda lines: [*lines[:6], {**lines[3], "request": "c", "now": 4.0}],
        "7: append of request 'c', which no line before has left live",
    ),
    "allocator: allocated twice": (
        V1_LOG,
        lambda lines: [*lines[:3], lines[1] | {"now": 2.0}, *lines[3:]],
        "4: request 'a' is allocated again, though it is live since line 2 and not freed",
    ),
    "allocator: an empty expect": (
        V1_LOG,
        lambda lines: [*lines[:3], {**lines[3], "expect": {}}, *lines[4:]],
        "4: expect has no 'status'",
    ),
    "allocator: an answer without the state": (
        V1_LOG,
        lambda lines: [
            *lines[:3],
            {**lines[3], "expect": only(("status", "block_table"), lines[3]["expect"])},
            *lines[4:],
        ],
        "4: expect has no 'free_queue'",
    ),
    "allocator: V0 with the state of V1": (
        V0_LOG,
        lambda lines: [lines[0], *lines_of(V1_LOG)[1:]],
        "2: expect has no 'hashless_free'",
    ),
    "allocator: an empty initial state": (
        V1_LOG,
        lambda lines: [{**lines[0], "initial": {}}, *lines[1:]],
        "1: initial has no 'free_queue'",
    ),
    "allocator: time goes back": (
        V1_LOG,
        lambda lines: [*lines[:3], {**lines[3], "now": 0.5}, *lines[4:]],
        "4: now is 0.5, which is before the 1.0 of a line above",
    ),
}
BY_REQUEST = ("num_scheduled_tokens", "admitted_num_cached_tokens")


@pytest.mark.parametrize(("log", "edit", "sentence"), NOT_WHOLE.values(), ids=NOT_WHOLE)
def test_a_log_that_is_not_whole_is_an_error_and_no_agreement(path, log, edit, sentence):
    assert refused(path, edit(lines_of(log))).startswith(sentence)


def test_the_command_counts_what_was_not_replayed(prefixsim, tmp_path):
    shutil.copy(V1_LOG, tmp_path / "a.jsonl")
    write(tmp_path / "b.jsonl", lines_of(ENGINE_LOG)[:1])
    tampered = lines_of(V1_LOG)
    tampered[1]["expect"]["num_free_blocks"] = 6
    write(tmp_path / "c.jsonl", tampered)
    code, out, err = prefixsim("verify", tmp_path)
    assert code == 2
    assert out.splitlines() == [
        f"{tmp_path}/c.jsonl:2: num_free_blocks: expected 6, got 5",
        "verified 3 files: 1 agree, 1 diverge, 1 not replayed",
    ]
    assert err.startswith(f"prefixsim: error: {tmp_path}/b.jsonl:1: count is 5 and 0 lines are of")
    assert "Traceback" not in err


# Lines and fields, one at a time, in every fixture

WRONG = (None, True, 1.5, -1, "x", [], {}, [None], [-1], {"r0": True}, 2**70)

OPTIONAL = {
    "config": {
        "name",
        "initial",
        "watermark",
        "long_prefill_token_threshold",
        "enable_prefix_caching",
    },
    "allocate": {"chunk"},
    "append": {"now"},
    "extend": {"now"},
    "free": {"now"},
}
"""Fields without which a log is still whole; of an operation, the first ``now`` is enough."""


def part_of(line):
    return line.get("op") or line.get("kind") or "config"


def fields_of(log):
    """Every field once for every form of line: index of a line, part of the line, field."""
    seen = set()
    for index, line in enumerate(lines_of(log)):
        for part in ((), ("expect",), ("initial",)):
            fields = line if not part else line.get(part[0])
            if fields is None:
                continue
            form = (part_of(line), part, fields.get("status"), tuple(fields))
            if form not in seen:
                seen.add(form)
                yield from ((index, part, field) for field in fields)


def edited(log, index, part):
    """Return the lines of a log, and the object in one of them that is to be changed."""
    lines = lines_of(log)
    target = lines[index]
    for name in part:
        target = target[name]
    return lines, target


@pytest.mark.parametrize("log", ALL_LOGS, ids=lambda log: log.stem)
def test_a_missing_field_is_named_with_its_line(path, log):
    for index, part, field in fields_of(log):
        lines, target = edited(log, index, part)
        del target[field]
        if field in OPTIONAL.get(part_of(lines[index]), ()) and not part:
            assert outcome_of(path, lines).errors == []
            continue
        said = refused(path, lines)
        if field in ("kind", "op"):
            # Without it, the line may be taken for one of another kind of log.
            continue
        assert said.startswith(f"{index + 1}: ")
        assert f"has no '{field}'; recorded logs are described in" in said


def may_hold(right, wrong):
    """Whether a field that holds ``right`` may also hold ``wrong``, though it be another value."""
    if isinstance(right, list | dict):
        return type(wrong) is type(right) and not wrong
    if isinstance(right, float):
        return wrong == 1.5
    return type(wrong) is type(right) and wrong not in (-1, 2**70)


@pytest.mark.parametrize("log", ALL_LOGS, ids=lambda log: log.stem)
def test_a_field_of_another_kind_is_named_with_its_line(path, log):
    """For every field and every value that is no value of such a field."""
    for index, part, field in fields_of(log):
        if field == "name":
            continue
        _, target = edited(log, index, part)
        right = target[field]
        for wrong in WRONG:
            if may_hold(right, wrong):
                continue
            lines, target = edited(log, index, part)
            target[field] = wrong
            said = refused(path, lines)
            if field in ("kind", "op") or (part, field) == ((), "initial"):
                continue
            assert said.startswith(f"{index + 1}: "), (field, wrong, said)
            assert field in said, (field, wrong, said)


@pytest.mark.parametrize("log", ALL_LOGS, ids=lambda log: log.stem)
def test_a_whole_number_is_not_taken_for_true_or_a_fraction(path, log):
    """In Python ``1 == 1.0 == True``: neither is what an engine records as a count."""
    num_fields = 0
    for index, line in enumerate(lines_of(log)):
        for part in ((), ("expect",)):
            if part and part[0] not in line:
                continue
            for field, value in edited(log, index, part)[1].items():
                if type(value) is not int or (value > 1 and num_fields > 50):
                    continue
                num_fields += 1
                for equal in (float(value), bool(value)):
                    if equal == value:
                        lines, target = edited(log, index, part)
                        target[field] = equal
                        said = refused(path, lines)
                        assert said.startswith(f"{index + 1}: {field} of ")
                        assert f" is {json.dumps(equal)} but must be a whole number" in said
    assert num_fields > 10


@pytest.mark.parametrize("log", [SCHEDULER_LOG, ENGINE_LOG], ids=lambda log: log.stem)
def test_no_line_can_be_dropped_doubled_or_be_the_last(path, log):
    lines = lines_of(log)
    for index in range(len(lines)):
        assert outcome_of(path, lines[:index] + lines[index + 1 :]).num_agreeing == 0
        assert outcome_of(path, lines[: index + 1] + lines[index:]).num_agreeing == 0
        if index > 0:
            assert outcome_of(path, lines[:index]).num_agreeing == 0


def others(value):
    """Values of the same kind that are not the same."""
    if isinstance(value, bool | str):
        return []
    if isinstance(value, int | float):
        return [value + 1, value * 2 + 3]
    if isinstance(value, list):
        return [value[:-1], value[::-1], [*value, *value[-1:]], [*value, *(value or [7])]]
    return [dict(list(value.items())[1:]), {name: n + 1 for name, n in value.items()}]


def expectations(log):
    """Every expectation of a log: index of a line, part of the line, field."""
    for index, line in enumerate(lines_of(log)):
        if "initial" in line:
            yield from ((index, ("initial",), field) for field in line["initial"])
        if "expect" in line:
            yield from ((index, ("expect",), field) for field in line["expect"])
        elif line.get("kind") in ("step", "summary") or "index" in line:
            yield from ((index, (), field) for field in line if field not in ("kind", "index"))


@pytest.mark.parametrize("log", ALL_LOGS, ids=lambda log: log.stem)
def test_no_expectation_can_be_altered(path, log):
    num_altered = 0
    for index, part, field in expectations(log):
        _, target = edited(log, index, part)
        right = target[field]
        for other in others(right):
            as_set = field in ("preempted", "finished")
            if other == right or (as_set and sorted(other) == sorted(right)):
                continue
            lines, target = edited(log, index, part)
            target[field] = other
            outcome = outcome_of(path, lines)
            assert outcome.num_agreeing == 0, (index, field, other)
            num_altered += 1
    assert num_altered > 50


# What else a file can hold


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"now": 1.0', '"now": NaN', "'NaN' is no finite number"),
        ('"now": 1.0', '"now": -Infinity', "'-Infinity' is no finite number"),
        ('"now": 1.0', '"now": 1e999', "'1e999' is no finite number"),
        ('"tokens": [14]', f'"tokens": {"[" * 100_000}', "nested too deep"),
        ('"tokens": [14]', f'"tokens": [{"9" * 5000}]', "Exceeds the limit (4300 digits)"),
        ('"num_free_blocks": 5', '"num_free_blocks": 6, "num_free_blocks": 5', "stands twice"),
    ],
    ids=["NaN", "infinity", "too large", "deep", "digits", "twice"],
)
def test_what_json_cannot_mean(path, old, new, reason):
    rows = V1_LOG.read_text(encoding="utf-8").splitlines()
    assert old in rows[2]
    rows[2] = rows[2].replace(old, new)
    error = error_of(path, "\n".join(rows))
    assert error.startswith(f"{path}:3: not JSON (")
    assert reason in error


@pytest.mark.parametrize("token", [2**63, 2**70, -1, None, True, 1.0, "1"])
def test_a_token_that_is_none_is_named(path, token):
    lines = lines_of(V1_LOG)
    lines[1]["tokens"][3] = token
    rule = "must be a whole number from 0 to 9223372036854775807; correct it as"
    sentence = f"2: tokens[3] of the operation is {json.dumps(token)} but {rule}"
    assert refused(path, lines).startswith(sentence)
    lines = lines_of(SCHEDULER_LOG)
    lines[2]["output_tokens"][0] = token
    sentence = f"3: output_tokens[0] of the request is {json.dumps(token)} but {rule}"
    assert refused(path, lines).startswith(sentence)
    lines = lines_of(V1_LOG)
    lines[1]["tokens"][3] = 2**63 - 1
    assert outcome_of(path, lines).errors == []


@pytest.mark.parametrize(
    ("log", "number", "field"),
    [
        (V1_LOG, 2, "tokens"),
        (V1_LOG, 3, "tokens"),
        (SCHEDULER_LOG, 2, "tokens"),
        (SCHEDULER_LOG, 2, "output_tokens"),
    ],
)
def test_a_request_has_tokens_and_makes_the_model_write(path, log, number, field):
    lines = lines_of(log)
    lines[number - 1][field] = []
    said = refused(path, lines)
    assert said.startswith(f"{number}: {field} of the ")
    assert " is [] but must be a list of at least one token id; correct it" in said


def test_a_count_of_a_step_is_named_with_its_request(path):
    lines = lines_of(SCHEDULER_LOG)
    lines[7]["num_scheduled_tokens"]["r1"] = None
    assert refused(path, lines).startswith(
        "8: num_scheduled_tokens['r1'] of the step is null but must be a whole number"
    )


def test_a_long_wrong_value_is_cut(path):
    lines = lines_of(V1_LOG)
    lines[1]["request"] = "a" * 1000
    lines[2]["request"] = ["a" * 1000]
    assert len(refused(path, lines)) < 200


def test_lines_are_counted_from_where_the_configuration_stands(path):
    config, *lines = lines_of(V1_LOG)
    text = "\n\n" + text_of([{**config, "block_size": 0}, *lines])
    assert error_of(path, text).startswith(f"{path}:3: block_size of the configuration is 0")


def test_a_divergence_stays_on_one_line_and_can_be_printed(prefixsim, path):
    lines = lines_of(V1_LOG)
    lines[1]["expect"]["a\nb"] = "c\nd\ud800"
    write(path, lines)
    code, out, _ = prefixsim("verify", path)
    assert code == 1
    assert out.splitlines() == [
        f"{path}:2: 'a\\nb': expected 'c\\nd\\ud800', got nothing",
        "verified 1 files: 0 agree, 1 diverge",
    ]


@pytest.mark.parametrize("trace", [None, 3, "", "x" * 5000, "a\0b", "\ud800"])
def test_a_trace_that_is_no_file_name(path, trace):
    lines = lines_of(ENGINE_LOG)
    lines[0]["trace"] = trace
    assert "trace" in refused(path, lines)


def test_a_flag_that_is_neither_true_nor_false(path):
    """Taken for true, the replay would be of another engine."""
    lines = lines_of(SCHEDULER_LOG)
    lines[0]["enable_prefix_caching"] = "false"
    assert refused(path, lines).startswith(
        '1: enable_prefix_caching of the configuration is "false" but must be true or false'
    )


def test_a_log_without_caching_still_names_what_was_run(path):
    lines = lines_of(SCHEDULER_LOG)
    lines[0] |= {"enable_prefix_caching": False, "variant": "v2"}
    assert refused(path, lines).startswith("1: variant 'v2' is modelled by no policy")


def test_a_pool_that_holds_only_the_null_block(path):
    lines = lines_of(V1_LOG)
    lines[0]["num_blocks"] = 1
    assert refused(path, lines).startswith(
        "1: num_blocks of the configuration is 1 but must be a whole number from 2 to"
    )


# What the format leaves open, and what is a divergence


def test_only_the_first_time_is_needed(path):
    """V1 does not look at the clock: an operation without ``now`` happens when the last one did."""
    lines = lines_of(V1_LOG)
    for line in lines[1:]:
        if line["op"] != "allocate":
            del line["now"]
    assert outcome_of(path, lines).num_agreeing == 1


def test_without_a_time_the_clock_stands_still(path):
    """In V0 the blocks of a request freed without ``now`` are as old as the line before says."""
    lines = lines_of(V0_LOG)
    frees = [line for line in lines[1:] if line["op"] == "free"]
    assert frees
    for line in frees:
        del line["now"]
    without = outcome_of(path, lines)
    for line, before in zip(lines[2:], lines[1:-1], strict=True):
        if line["op"] == "free":
            line["now"] = before["now"]
    stated = outcome_of(path, lines)
    assert without.errors == stated.errors == []
    assert without.divergences == stated.divergences


def test_what_changes_no_answer_is_not_noticed(path):
    """As docs/recorded-logs.md says; the twin of each that does change one is noticed."""

    def is_noticed(log, change):
        lines = lines_of(log)
        change(lines)
        return outcome_of(path, lines).num_agreeing == 0

    # Nobody shares what c brings on line 8; a's first block is hit.
    assert not is_noticed(V1_LOG, lambda lines: lines[7]["tokens"].__setitem__(-1, 999))
    assert is_noticed(V1_LOG, lambda lines: lines[1]["tokens"].__setitem__(0, 999))
    # Line 6 was refused, line 5 was not.
    assert not is_noticed(V1_LOG, lambda lines: lines.pop(5))
    assert not is_noticed(V1_LOG, lambda lines: lines.insert(5, lines[5]))
    assert is_noticed(V1_LOG, lambda lines: lines.pop(4))
    # V1 does not look at the clock.
    assert not is_noticed(V1_LOG, lambda lines: lines[-1].update(now=10**6))
    # A fifth request never waits for the other four, but a step would compute a token less.
    assert not is_noticed(SCHEDULER_LOG, lambda lines: lines[0].update(max_num_seqs=5))
    assert is_noticed(SCHEDULER_LOG, lambda lines: lines[0].update(max_num_batched_tokens=11))


def test_requests_of_an_engine_log_stand_in_any_order(path):
    lines = lines_of(ENGINE_LOG)
    assert outcome_of(path, [lines[0], *lines[-2:0:-1], lines[-1]]).num_agreeing == 1


def test_what_the_policy_refused_and_the_record_admitted_diverges(path):
    """In four usable blocks b finds no room beside a, nor d beside c; then b cannot be freed."""
    lines = lines_of(V1_LOG)[:10]
    lines[0]["num_blocks"] = 5
    del lines[0]["initial"]
    outcome = outcome_of(path, lines)
    assert outcome.errors == []
    assert (outcome.num_agreeing, outcome.num_diverging) == (0, 1)
    said = [(d.line, d.expected, d.got) for d in outcome.divergences if d.field == "status"]
    assert said == [(5, "OK", "LATER"), (9, "OK", "not live"), (10, "OK", "LATER")]


def test_what_the_policy_admitted_and_the_record_refused_diverges(path):
    """In 19 usable blocks, c finds room on line 6 already, where it was refused until line 8."""
    lines = lines_of(V1_LOG)
    lines[0]["num_blocks"] = 20
    del lines[0]["initial"]
    outcome = outcome_of(path, lines)
    assert outcome.errors == []
    said = [(d.line, d.expected, d.got) for d in outcome.divergences if d.field == "status"]
    assert said == [(6, "LATER", "OK"), (8, "OK", "live already")]


# Real recordings


@needs(GOLDENS)
def test_no_real_scheduler_log_agrees_when_cut(path):
    for log in sorted((GOLDENS / "scheduler").glob("*.jsonl")):
        lines = lines_of(log)
        num_requests = sum(line.get("kind") == "request" for line in lines)
        for stop in {1, 2, num_requests, num_requests + 1, len(lines) // 2, len(lines) - 1}:
            assert outcome_of(path, lines[:stop]).errors != []


@needs(GOLDENS)
def test_no_real_engine_log_agrees_when_cut(path):
    for log in sorted((GOLDENS / "engine").glob("*.jsonl")):
        lines = lines_of(log)
        middle = len(lines) // 2
        for rest in (lines[:1], lines[:middle], lines[:-1], lines[:middle] + lines[middle + 1 :]):
            assert outcome_of(path, rest).errors != []


@needs(GOLDENS)
def test_no_real_allocator_log_agrees_without_its_state(path):
    for log in sorted((GOLDENS / "allocator").glob("*-00?.jsonl")):
        lines = lines_of(log)
        for field in lines[1]["expect"]:
            rest = copy.deepcopy(lines)
            del rest[1]["expect"][field]
            assert refused(path, rest).startswith(f"2: expect has no '{field}'")
