"""The message that a handler gets where messages are finished one by one. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from zkconsumer.balance.outcomes import DONE, Failed, Outcome
from zkconsumer.streams.message import K, MessageAndMetadata, V

if TYPE_CHECKING:
    from zkconsumer.balance.dispatched_work import Work


class MessageFailed(Exception):
    """The error of a message that the application gave back with ``nack()``."""


class Answers(Protocol):
    """Takes the outcome of a message that the application finishes elsewhere."""

    def answer(self, work: Work, outcome: Outcome) -> None:
        """Take the outcome, unless there is one already."""


class BalancedMessage(MessageAndMetadata[K, V]):
    """One message of a run with ``concurrency``: a :class:`MessageAndMetadata`, and how it has fared.

    It may be finished elsewhere than in the handler, which returns ``PENDING`` then: by :meth:`ack` or :meth:`nack`,
    from any thread. The first answer counts. An answer that comes after another one, after the handler's own, or after
    the partition has left this member, does nothing.
    """

    __slots__ = ("work",)

    def __init__(self, record: Any, place: Sequence[Any], work: Work) -> None:
        super().__init__(record, place)
        self.work = work

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name != "work"]

    def ack(self) -> None:
        """Finish the message. Any thread; returns at once."""
        self.work.partition.answers.answer(self.work, DONE)

    def nack(self, error: BaseException | None = None) -> None:
        """Count this attempt as failed. Any thread; returns at once. Arguments: ``error`` is the reason."""
        reason = error if isinstance(error, Exception) else MessageFailed(error or "nack()")
        self.work.partition.answers.answer(self.work, Failed(reason))

    @property
    def attempt(self) -> int:
        """The number of this attempt at the message, from 1 on."""
        return self.work.attempts + 1

    @property
    def last_failure(self) -> str:
        """Why the last attempt failed: the exception's class and the first line of its text, shortened.

        Empty if none failed, or if another member handled it and the message was not parked.
        """
        return self.work.failure


def balanced_class(stream_class: Any) -> Callable[..., BalancedMessage[Any, Any]]:
    """Return the class of messages that have the decoders of a stream's messages. The same one each time."""
    return _balanced_class(stream_class)


@lru_cache(maxsize=64)
def _balanced_class(stream_class: Any) -> Callable[..., BalancedMessage[Any, Any]]:
    if stream_class is MessageAndMetadata:
        return BalancedMessage
    return type(
        "BalancedMessage", (BalancedMessage, stream_class), {"__slots__": (), "__doc__": BalancedMessage.__doc__}
    )
