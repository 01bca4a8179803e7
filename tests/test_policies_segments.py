"""Orders that keep places or segments, held to plain lists where blocks are in use."""

from hypothesis import example, given
from hypothesis import strategies as st

from policies._orders import Access, Order
from policies.sieve import SieveOrder
from policies.slru import SlruOrder
from policies.w_tinylfu import WTinyLfuOrder

ACCESS = Access()
CAPACITY = 6
STEPS = st.lists(st.tuples(st.sampled_from("abcdefghijk"), st.booleans()), max_size=80)


class PlainSieve:
    """SIEVE as the paper has it: one list, newest last; the hand is an index into it."""

    def __init__(self):
        self.line, self.visited, self.hand = [], set(), 0

    def hit(self, key):
        self.visited.add(key)

    def insert(self, key):
        self.line.append(key)

    def victim(self, blocked):
        while True:
            if self.hand >= len(self.line):
                self.hand = 0
            key = self.line[self.hand]
            if key not in blocked and key not in self.visited:
                del self.line[self.hand]
                if self.hand == len(self.line):
                    self.hand = 0  # the newest is gone, so that it begins again
                return key
            if key not in blocked:
                self.visited.discard(key)
            self.hand += 1


class PlainSlru:
    """Two lists, oldest first; the protected one never longer than its limit."""

    def __init__(self, limit):
        self.probation, self.protected, self.limit = [], [], limit

    def hit(self, key):
        for segment in (self.probation, self.protected):
            if key in segment:
                segment.remove(key)
        self.protected.append(key)
        if len(self.protected) > self.limit:
            self.probation.append(self.protected.pop(0))

    def insert(self, key):
        self.probation.append(key)

    def victim(self, blocked):
        for segment in (self.probation, self.protected):
            for key in segment:
                if key not in blocked:
                    segment.remove(key)
                    return key
        raise AssertionError


def replay(order: Order, plain, steps):
    """Ask for a key a step, which then is in use or no longer; one block always may go."""
    numbers, cached, blocked = {}, set(), []
    for name, is_kept in steps:
        key = numbers.setdefault(name, len(numbers))
        if key in cached:
            order.on_hit(key, 0, ACCESS)
            plain.hit(key)
        else:
            order.on_miss(key)
            if len(cached) == CAPACITY:
                victim = order.victim()
                assert victim == plain.victim(blocked)
                cached.remove(victim)
            order.on_insert(key, 0, ACCESS)
            plain.insert(key)
            cached.add(key)
        if is_kept and key not in blocked:
            blocked.append(key)
            order.blocked.add(key)
        if not is_kept or len(blocked) == CAPACITY:
            free = key if key in blocked and not is_kept else blocked[0] if blocked else None
            if free is not None:
                blocked.remove(free)
                order.blocked.discard(free)


@example(
    steps=[("a", False), *((name, True) for name in "adefg"), *((name, False) for name in "bcb")]
)
@given(steps=STEPS)
def test_sieve_keeps_places_and_hand_where_blocks_are_in_use(steps):
    replay(SieveOrder(CAPACITY), PlainSieve(), steps)


@given(steps=STEPS, protected=st.sampled_from([0.2, 0.5, 0.8]))
def test_slru_keeps_its_limit_where_blocks_are_in_use(steps, protected):
    order = SlruOrder(CAPACITY, protected=protected)
    replay(order, PlainSlru(int(CAPACITY * protected)), steps)


def test_segments_keep_their_limits_while_everything_is_in_use():
    slru = SlruOrder(10, protected=0.5)
    lfu = WTinyLfuOrder(10, window=0.2, protected=0.5, sample=10)
    for order in (slru, lfu):
        for key in range(10):
            order.on_insert(key, 0, ACCESS)
            order.blocked.add(key)
        for _ in range(3):
            for key in range(10):
                order.on_hit(key, 0, ACCESS)
    assert (len(slru._protected), len(slru._probation)) == (5, 5)
    # What the window holds too much goes on when room is needed.
    for key in range(9, -1, -1):
        lfu.blocked.discard(key)
    lfu.victim()
    assert (len(lfu._window), len(lfu._protected)) == (1, 0)
    for key in [key for key in range(10) if key in lfu._probation]:
        lfu.on_hit(key, 0, ACCESS)
    assert len(lfu._protected) == 4
