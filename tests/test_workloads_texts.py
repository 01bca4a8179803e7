"""Texts in columns, and their numbers: as a list and a dict of them have it."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.texts import TextColumn, TextNumbers, Texts, column_of

texts = st.text(st.characters(codec=None), max_size=4)
few_texts = st.sampled_from(["", "a", "b", "ab", "\0", "ä", "\ud800", "chat-1", "chat-2"])


@given(some=st.lists(texts), more=st.lists(texts), data=st.data())
def test_texts_are_a_sequence_of_what_was_added(some, more, data):
    column = TextColumn()
    column.extend(some)
    for text in more:
        column.append(text)
    plain = [*some, *more]
    found = column.texts()
    assert list(found) == plain
    assert [found[index] for index in range(-len(plain), len(plain))] == [*plain, *plain]
    order = data.draw(st.lists(st.integers(0, len(plain) - 1)) if plain else st.just([]))
    taken = found.take(np.array(order, dtype=np.int64))
    assert list(taken) == [plain[number] for number in order]
    part = data.draw(st.slices(len(plain)))
    assert list(found[part]) == plain[part]
    assert list(taken[part].in_a_row()) == list(taken)[part]
    laid_out = taken.in_a_row()
    assert list(Texts(laid_out.data, laid_out.stops)) == list(taken)
    with pytest.raises(IndexError):
        found[len(plain)]


@settings(deadline=None)
@given(
    steps=st.lists(st.lists(st.one_of(few_texts, texts), max_size=6), max_size=12),
    compile_from=st.integers(0, 9),
)
def test_compiled_numbers_are_those_of_a_dict(steps, compile_from):
    plain: dict[str, int] = {}
    numbers = TextNumbers(compile_from)
    for step in steps:
        assert numbers.find_many(step).tolist() == [plain.get(text, -1) for text in step]
        for text in step[:2]:
            assert numbers.find(text) == plain.get(text, -1)
            assert numbers.add(text) == plain.setdefault(text, len(plain))
        added = [plain.setdefault(text, len(plain)) for text in step]
        assert numbers.add_many(step).tolist() == added
        assert len(numbers) == len(plain)
        assert list(numbers.texts()) == list(plain)


def test_texts_whose_hashes_agree_stay_different(monkeypatch):
    """Every text has one hash, so that the bytes alone tell them apart."""
    from workloads import compiled_texts  # noqa: PLC0415

    hash_all, find, add = (
        getattr(compiled_texts, name)._function for name in ("_hash_all", "_find", "_add")
    )
    monkeypatch.setattr(compiled_texts, "_hash_all", hash_all)
    monkeypatch.setattr(compiled_texts, "_find", find)
    monkeypatch.setattr(compiled_texts, "_add", add)
    monkeypatch.setattr(compiled_texts, "_slot_of", compiled_texts._slot_of._function)
    monkeypatch.setattr(compiled_texts, "_hash", lambda data, start, stop: np.int64(5))
    numbers = TextNumbers(compile_from=0)
    words = [f"{number:x}" for number in range(40)]
    assert numbers.add_many(words).tolist() == list(range(40))
    assert numbers.add_many([*reversed(words), "40"]).tolist() == [*range(39, -1, -1), 40]
    assert numbers.find_many(["0", "nobody", "27"]).tolist() == [0, -1, 39]


def test_many_texts_grow_beyond_their_table():
    numbers = TextNumbers(compile_from=10)
    words = [f"request-{number}" for number in range(5000)]
    for first in range(0, 5000, 700):
        numbers.add_many(words[first : first + 700])
    assert numbers.find_many(words).tolist() == list(range(5000))
    assert list(column_of(words).texts()) == list(numbers.texts())


_MANY = """
import resource
import numpy as np
from workloads.texts import KeyNumbers, TextNumbers
TextNumbers(0).add_many(["a"])  # loads compiled code
texts, keys = TextNumbers({compile_from}), KeyNumbers({compile_from})
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
limit = used + (40 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
for first in range(0, 400_000, 1000):
    texts.add_many([f"request {{number:060}}" for number in range(first, first + 1000)])
    keys.add(np.arange(first, first + 1000, dtype=np.int64) << 20)
print(len(texts), len(keys), texts.find(f"request {{123_456:060}}"))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits are told otherwise")
@pytest.mark.parametrize(("compile_from", "fits"), [(1000, True), (10**9, False)])
def test_many_names_take_no_memory_of_their_own(compile_from, fits):
    """400,000 ids of requests and as many keys where 40 MiB of memory are left."""
    done = subprocess.run(
        [sys.executable, "-c", _MANY.format(compile_from=compile_from)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == fits, done.stderr
    assert done.stdout.strip() == ("400000 400000 123456" if fits else "")
    assert fits or "MemoryError" in done.stderr
