"""Messages in the users' hands count in the byte budget, and keep no other stream from its messages.

Large messages alone are modelled, one of which may be more than the whole budget.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from tests.values import present
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.byte_budget import QueueBudget
from zkconsumer.streams.stream_queue import StreamQueue

LIMIT = 64


class User:
    """A user with a stream of one partition, and the sizes of the messages that are left in the log.

    ``keeps`` is the number of messages after which the user asks for no other one, and keeps the last.
    """

    def __init__(self, number: int, sizes: list[int], keeps: int, budget: QueueBudget) -> None:
        self.queue = StreamQueue(10, lambda: None, budget)
        self.position = PartitionPosition(TopicPartition("t", number), ThreadId("g_c-0"), 0)
        self.log = deque(sizes)
        self.wanted = min(len(sizes), keeps)
        self.got = 0

    @property
    def done(self) -> bool:
        return self.got == self.wanted

    def ask(self) -> None:
        """Finish the message in hand and ask for the next, without waiting for it."""
        self.queue.taken = None
        with suppress(ConsumerTimeoutException):
            chunk = present(self.queue.take(Deadline(0)))
            chunk.drop_records(len(chunk.records))
            self.got += 1


def fetch(users: list[User], budget: QueueBudget) -> None:
    """Send one request as a fetcher does; the broker answers with at least one whole message (KIP-74)."""
    free = budget.free()
    welcome = [user for user in users if user.queue.has_room(free) and user.log]
    left = granted = budget.reserve(LIMIT)
    budget.release(granted)
    for number, user in enumerate(welcome):
        if number and user.log[0] > left:
            break
        size = user.log.popleft()
        left -= size
        user.queue.deliver(user.position, bytes(size), (0, 1), (), 1)


SIZES = st.lists(st.integers(1, 2 * LIMIT), max_size=4)


@given(plans=st.lists(st.tuples(SIZES, st.integers(0, 4)), min_size=1, max_size=8))
def test_users_who_keep_messages_hold_up_no_other(plans: list[tuple[list[int], int]]) -> None:
    """Each request serves a reader that waits, whatever is in hand. So nobody waits for another user's next step."""
    budget = QueueBudget(LIMIT)
    users = [User(number, sizes, keeps, budget) for number, (sizes, keeps) in enumerate(plans)]
    for _ in range(2 * sum(len(sizes) for sizes, _ in plans)):
        for user in users:
            if not user.done:
                user.ask()
        fetch(users, budget)
    for user in users:
        if not user.done:
            user.ask()
    assert [user.got for user in users] == [user.wanted for user in users]


def test_busy_users_get_no_more_than_the_budget_ahead() -> None:
    """Messages in hand may be more than the budget. Then no more than the budget waits beside them."""
    budget = QueueBudget(LIMIT)
    users = [User(number, [LIMIT // 8] * 10, 10, budget) for number in range(20)]
    for _ in range(100):
        for user in users:
            if user.queue.taken is None:
                user.ask()
        fetch(users, budget)
        assert sum(user.queue.bytes for user in users) <= LIMIT
    assert [user.got for user in users] == [1] * 20, "each has a message in hand and asks for no other one"
    in_hand = len(users) * LIMIT // 8
    assert budget.used <= in_hand + LIMIT
    assert budget.free() <= 0
    fetched = budget.used
    fetch(users, budget)
    assert budget.used == fetched, "nobody waits"
