"""``--kv-capacity`` in all its units, worked by hand."""

import pytest

from sim.capacity import num_usable_blocks
from sim.errors import UsageError
from sim.types import Request


def resolve(capacity, block_size, requests=()):
    return num_usable_blocks(
        capacity,
        block_size,
        requests,
        num_distinct_tokens=lambda: 10_000,
        num_gpu_tokens=lambda: 464_692,
        num_bytes_per_token=lambda: 131_072,
    )


@pytest.mark.parametrize(
    ("capacity", "block_size", "num_blocks"),
    [
        ("163840", 16, 10_240),
        ("163840tokens", 512, 320),
        ("10000blocks", 512, 10_000),
        ("10000 blocks", 16, 10_000),
        ("5%", 16, 31),  # 500 tokens hold 31 blocks and a quarter
        ("0.5%", 50, 1),
        ("100%", 1, 10_000),
        ("2GiB", 16, 1_024),  # 16,384 tokens of 128 KiB
        ("0.5 gib", 512, 8),
        ("auto", 16, 29_043),
        ("AUTO", 512, 907),
    ],
)
def test_capacity(capacity, block_size, num_blocks):
    assert resolve(capacity, block_size) == num_blocks


def test_a_block_size_sweep_holds_memory_constant():
    assert {resolve("65536", size) * size for size in (8, 16, 64, 512)} == {65_536}


def test_an_infinite_pool_has_room_for_every_request_at_once():
    # 10 + 4 - 1 = 13 tokens of KV are 4 blocks of 4; 4 tokens are 1.
    requests = [Request("a", 0, None, 10, 4), Request("b", 0, None, 4, 0)]
    assert resolve("infinite", 4, requests) == 5


@pytest.mark.parametrize("capacity", ["", "x", "5q", "-3", "1e5", "%", "blocks", "nan", "1.2.3"])
def test_another_form_is_refused_with_those_there_are(capacity):
    with pytest.raises(UsageError, match=r"--kv-capacity .* is not a capacity: give tokens"):
        resolve(capacity, 16)


@pytest.mark.parametrize("capacity", ["15", "0", "0blocks", "0.1%"])
def test_less_than_a_block_is_refused(capacity):
    with pytest.raises(UsageError, match=r"less than one block of --block-size 16; raise it"):
        resolve(capacity, 16)


def test_more_blocks_than_can_be_simulated_are_refused():
    assert resolve("50000000blocks", 16) == 50_000_000
    with pytest.raises(UsageError, match=r"is 62,500,000,000 blocks of --block-size 16, more"):
        resolve("1000000000000", 16)
