"""Every exception that zkconsumer raises, in one tree.

::

    ZkConsumerError
    ├── ConfigException                     (also ValueError) a property is missing, unknown in value, or contradictory
    │   └── UnknownKeywordError             (also TypeError) a keyword that is no property; names the likely one
    ├── MissingExtraError                   (also ImportError) a feature needs an optional dependency
    ├── UnsupportedVersionError             a library is installed in a version that does not fit
    ├── ConsumerTimeoutException            no message within consumer.timeout.ms; the stream stays usable
    ├── MessageStreamsExistException        streams were created before on this connector
    ├── ConnectorClosedException            the connector was shut down
    ├── ConsumerRebalanceFailedException    the group could not be joined
    ├── PartitionNotOwnedError              (also LookupError) a partition that this member does not own
    ├── DecodeError                         (also ValueError) a decoder failed; names topic, partition and offset
    ├── UnknownAssignorError                a strategy that no plug-in provides
    ├── WorkerDiedError                     a worker process ended while it had messages in hand
    ├── HandlerTimeoutError                 (also TimeoutError) a handler took longer than handler.timeout.ms
    ├── HandlerFailedError                  a handler's exception cannot be passed on; names its class
    ├── RegistryError                       anything between us and ZooKeeper
    │   ├── RegistryUnavailableError        not reachable within zookeeper.connection.timeout.ms
    │   ├── RegistryAuthenticationError     ZooKeeper refused our login, or its certificate is not to be trusted
    │   ├── NotPermittedError               an ACL in ZooKeeper forbids the operation; names the path
    │   ├── ChrootMissingError              the chroot of zookeeper.connect does not exist
    │   ├── SessionLostError                the session ended under the operation
    │   ├── ConsumerIdInUseError            another live session holds our consumer.id
    │   ├── MessageModelConflictError       the group has members of the other message.model
    │   └── MalformedNodeError              a node's content cannot be read; names the path
    ├── BrokerError                         anything between us and a Kafka broker
    │   ├── BrokerUnavailableError          not reachable, or did not answer in time
    │   │   ├── CoordinatorUnavailableError the broker that keeps the group's offsets cannot be found now
    │   │   └── UnknownTopicError           (also LookupError) the brokers know no topic of this name
    │   ├── BrokerAuthenticationError       a broker refused our login, or its certificate is not to be trusted
    │   ├── NoBrokersError                  no broker is registered in ZooKeeper
    │   ├── NoReachableEndpointError        a broker registered no endpoint of the wanted protocol
    │   ├── MalformedMemberError            a member of the group sent its leader, or was sent, what cannot be read
    │   └── BrokerResponseError             the broker answered with an error code
    │       └── GroupError                  one of a group's coordinator; one class a code:
    │           NotCoordinatorError, CoordinatorLoadInProgressError, CoordinatorNotAvailableError,
    │           RebalanceInProgressError, UnknownMemberIdError, IllegalGenerationError, MemberIdRequiredError,
    │           FencedInstanceIdError, GroupAuthorizationError, InconsistentGroupProtocolError,
    │           GroupMaxSizeReachedError, InvalidGroupIdError, InvalidSessionTimeoutError, UnstableOffsetCommitError
    ├── OffsetOutOfRangeError               an offset is not in the log (any more); never guessed around
    ├── OffsetCommitError                   offsets could not be written
    ├── OffsetConflictError                 somebody else wrote the offset of a partition we own (offset.conflict=raise)
    ├── OffsetStoreConflictError            members of the group do not keep their offsets in our database
    ├── RecordRefusedError                  this member is not to write a message: roll back, and read on
    │   ├── FencedRecordError               another member has claimed the partition
    │   └── RepeatedRecordError             the message is recorded already
    ├── SkippedRecordError                  messages before the one to record are not recorded
    ├── LogTruncatedError                   a partition's log lost what was read of it (log.truncation.policy=raise)
    └── UnreadableMessageError              a place in a partition, which it names; KafkaStream.skip() goes on after it
        ├── InvalidMessageException         corrupt data
        └── MessageSizeTooLargeException    a message is larger than the largest fetch

The names are those of the original connector where it had one, so that a search for them finds Kafka's own
documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from zkconsumer.model import TopicPartition


class ZkConsumerError(Exception):
    """Base of all errors of this package. They can be copied and pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        # constructors take other arguments than the text: a pool of processes would end, or show another text
        return type(self).__new__, (type(self), *self.args), self.__dict__


class ConfigException(ZkConsumerError, ValueError):
    """A property is missing, has a bad value, or contradicts another.

    Arguments: ``key`` is the property's name, ``reason`` says what is wrong and what to do.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


class UnknownKeywordError(ConfigException, TypeError):
    """A keyword argument of a configuration is no property: most likely a slip of the pen.

    An unknown name in a mapping or a file only warns, as in the original: such files are shared with other programs.

    Arguments: ``keyword`` as it was given, and ``advice``, empty or the end of a sentence: what to write in its place.
    """

    def __init__(self, keyword: str, advice: str) -> None:
        super().__init__(keyword, f"no property has this name{advice}")


_SYSTEM_PACKAGES = {
    "kerberos": "it is built from source, which needs a C compiler and the headers of Python and Kerberos"
    " (Debian: gcc python3-dev libkrb5-dev; Red Hat: gcc python3-devel krb5-devel)"
}
"""What pip alone cannot install, by extra."""


class MissingExtraError(ZkConsumerError, ImportError):
    """A feature needs an optional dependency; the message names the extra to install, and what that needs itself.

    Arguments: ``found`` says what is installed and what to do, where installing the extra would be the wrong advice.
    """

    def __init__(self, feature: str, extra: str, found: str = "") -> None:
        needs = f"; {_SYSTEM_PACKAGES[extra]}" if extra in _SYSTEM_PACKAGES else ""
        advice = found or f"pip install 'zkconsumer[{extra}]'{needs}"
        super().__init__(f"{feature} needs an optional dependency: {advice}")
        self.feature = feature
        self.extra = extra


class UnsupportedVersionError(ZkConsumerError):
    """A library is installed in a version that does not fit; the message names that version and those that do."""


class ConsumerTimeoutException(ZkConsumerError):
    """No message arrived within ``consumer.timeout.ms``. The stream stays usable."""


class MessageStreamsExistException(ZkConsumerError):
    """The connector's streams exist already: one connector creates its streams once."""


class ConnectorClosedException(ZkConsumerError):
    """The connector was shut down; make a new one."""


class ForkedProcessError(ConnectorClosedException):
    """The connector is that of the process from which this one was forked, which reads on. Make a new one here, or fork
    before streams are created.
    """


class ConsumerRebalanceFailedException(ZkConsumerError):
    """The first rebalance did not succeed within its limit."""


class PartitionNotOwnedError(ZkConsumerError, LookupError):
    """Something was asked of a partition that this member does not own (any more)."""


class DecodeError(ZkConsumerError, ValueError):
    """A decoder failed; its own error is the ``__cause__``. The message itself is handed out and can be finished.

    Arguments: ``where`` and ``offset`` say of which message, ``field`` whether its key or its value.
    """

    def __init__(self, where: TopicPartition, offset: int, field: str, decoder: object, cause: Exception) -> None:
        super().__init__(
            f"{where} at offset {offset}: the {field} cannot be decoded by {decoder!r}: {type(cause).__name__}: {cause}"
        )
        self.where = where
        self.offset = offset
        self.field = field


class UnknownAssignorError(ZkConsumerError, LookupError):
    """``partition.assignment.strategy`` names a strategy that nothing provides."""


class WorkerDiedError(ZkConsumerError):
    """A worker process ended while it had messages in hand; the text names the process, how it ended and a message."""


class HandlerTimeoutError(ZkConsumerError, TimeoutError):
    """A handler took longer than ``handler.timeout.ms``: its process was killed, or its coroutine cancelled."""


class HandlerFailedError(ZkConsumerError):
    """A handler ended by an exception that cannot be passed on as it is: its process cannot send it, or its coroutine
    was cancelled.

    ``kind`` is the name of the exception's class. Its text and its traceback are in this one's text and notes.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class HandlerEndedRunError(BaseException):
    """A handler in a process ended the run by an exception that is no ``Exception``, and that its process cannot send.

    ``kind`` is the name of the exception's class. Its text and its traceback are in this one's text and notes.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class RegistryError(ZkConsumerError):
    """An operation on ZooKeeper failed."""


class RegistryUnavailableError(RegistryError):
    """ZooKeeper was not reachable in time."""


class RegistryAuthenticationError(RegistryError):
    """ZooKeeper refused our login, or TLS failed: a certificate that one side does not trust, a wrong host name.

    Trying again cures it only after somebody changed a password or a certificate.
    """


class NotPermittedError(RegistryError):
    """An ACL forbids the operation; the message names the path."""


class ChrootMissingError(RegistryError):
    """The chroot of ``zookeeper.connect`` does not exist; nobody but the brokers' operator should create it."""


class SessionLostError(RegistryError):
    """The ZooKeeper session ended under the operation; whatever it owned is gone."""


class ConsumerIdInUseError(RegistryError):
    """Another live session is registered under our ``consumer.id``."""


class MessageModelConflictError(RegistryError):
    """The group has live members that consume by the other ``message.model``; the message names them."""


class MalformedNodeError(RegistryError):
    """The content of a node cannot be read. Arguments: the node's ``path`` and the ``reason``."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class BrokerError(ZkConsumerError):
    """An exchange with a Kafka broker failed."""


class BrokerUnavailableError(BrokerError):
    """A broker is not reachable or did not answer in time."""


class UnknownTopicError(BrokerUnavailableError, LookupError):
    """The brokers answered until the time limit, and know no topic of this name. They may not know a new one yet.

    Arguments: ``topics`` that are unknown; ``similar`` are known names that may be meant.
    """

    def __init__(self, topics: Sequence[str], similar: Sequence[str] = ()) -> None:
        named = ", ".join(map(repr, topics))
        meant = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        super().__init__(f"the brokers know no topic {named}{meant}")
        self.topics = tuple(topics)


class CoordinatorUnavailableError(BrokerUnavailableError):
    """The broker that keeps the group's offsets (``offsets.storage=kafka``) is not known, or not there, at present."""


class BrokerAuthenticationError(BrokerError):
    """A broker refused our login, or TLS failed: a certificate that one side does not trust, a wrong host name.

    Trying again cures it only after somebody changed a password or a certificate, so it is tried ever more seldom.
    """


class NoBrokersError(BrokerError):
    """No broker is registered under ``/brokers/ids``."""


class NoReachableEndpointError(BrokerError):
    """A broker registered no endpoint of the wanted security protocol."""


class MalformedMemberError(BrokerError):
    """A member of a coordinated group sent bytes that cannot be read. Arguments: the ``member`` and the ``reason``."""

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(f"member {member!r}: {reason}")
        self.member = member
        self.reason = reason


class BrokerResponseError(BrokerError):
    """A broker answered with an error code. Arguments: ``code`` (int16) and the name of the request."""

    advice: ClassVar[str] = ""
    """What it means and what helps, where that is known."""

    def __init__(self, code: int, name: str, asked: str) -> None:
        super().__init__(f"{asked}: the broker answered {name} ({code})" + (f"; {self.advice}" if self.advice else ""))
        self.code = code
        self.name = name


class GroupError(BrokerResponseError):
    """A group's coordinator answered with an error code; ``kafka.error_codes`` says what to do about
    each.
    """


class NotCoordinatorError(GroupError):
    """The broker does not coordinate this group (any more)."""


class CoordinatorLoadInProgressError(GroupError):
    """The broker has just become the group's coordinator, and still loads the group."""


class CoordinatorNotAvailableError(GroupError):
    """There is no coordinator at present: the topic of offsets is being made, or a partition of it has no leader."""


class RebalanceInProgressError(GroupError):
    """The group rebalances. Members must join again to stay in it."""


class UnknownMemberIdError(GroupError):
    """The coordinator does not know this member (any more): it left, or was thrown out."""


class IllegalGenerationError(GroupError):
    """The generation is over, so other members may own its partitions now."""


class MemberIdRequiredError(GroupError):
    """A first join is answered with a member id, under which to join again (KIP-394). ``member_id`` is it."""

    member_id: str = ""


class FencedInstanceIdError(GroupError):
    """Another member has joined under our ``group.instance.id``."""

    advice = "another process has joined as the same group.instance.id: give each one its own"


class GroupAuthorizationError(GroupError):
    """We are not allowed to use this group."""

    advice = "whom we log in as needs the right to read the group"


class InconsistentGroupProtocolError(GroupError):
    """The group's members offer no strategy that we offer too, or the group is not one of consumers."""

    advice = (
        "no strategy of partition.assignment.strategy is known to all members of the group, or they are no consumers"
    )


class GroupMaxSizeReachedError(GroupError):
    """The group has as many members as the broker's ``group.max.size`` allows."""

    advice = "the group has as many members as the broker's group.max.size allows"


class InvalidGroupIdError(GroupError):
    """The broker takes no group of this name, an empty one say."""


class InvalidSessionTimeoutError(GroupError):
    """The session timeout is outside of what the broker allows (``group.min.session.timeout.ms`` and ``max``)."""

    advice = "session.timeout.ms is beyond the broker's group.min.session.timeout.ms or group.max.session.timeout.ms"


class UnstableOffsetCommitError(GroupError):
    """A transaction has written offsets of the group and not ended yet."""


class OffsetOutOfRangeError(ZkConsumerError):
    """An offset that was asked for is not in the log."""


class OffsetCommitError(ZkConsumerError):
    """Offsets could not be committed."""


class OffsetConflictError(ZkConsumerError):
    """Somebody else wrote the offset of a partition that this member owns, and ``offset.conflict`` is ``raise``.

    The partition's stream raises it at each read until ``connector.seek`` chooses an offset. ``partition`` is the
    partition, ``ours`` the offset up to which this member has finished messages, ``theirs`` the stored offset or None.
    """

    def __init__(self, partition: TopicPartition, ours: int | None, theirs: int | None) -> None:
        super().__init__(
            f"{partition}: somebody else wrote offset {theirs}, while {ours} is where we are; nothing of it is handed "
            f"out until connector.seek({partition!r}, offset) says where to go on"
        )
        self.partition = partition
        self.ours = ours
        self.theirs = theirs
        self.offset = (ours or 0) if theirs is None else theirs


class OffsetStoreConflictError(ZkConsumerError):
    """The group has members that do not keep their offsets in the database of this member.

    Nothing is handed out while such members are in the group. This member keeps the partitions that it owns.
    """


class RecordRefusedError(ZkConsumerError):
    """``DatabaseOffsets.record`` refused a message that this member is not to write: roll back, and read on.

    ``partition`` is the message's partition. Messages before ``until`` are not to be written either.
    """

    def __init__(self, partition: TopicPartition, reason: str, until: float = float("inf")) -> None:
        super().__init__(f"{partition}: {reason}")
        self.partition = partition
        self.until = until

    def covers(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether this member is not to write the message at this place."""
        return (topic, partition) == self.partition and offset < self.until


class FencedRecordError(RecordRefusedError):
    """The member does not own the partition any more, or another member has claimed it in the database.

    That member consumes the message.
    """


class RepeatedRecordError(RecordRefusedError):
    """The message is recorded already, with the rows of its transaction.

    That transaction was committed without an answer, or by this member before it lost its session and claimed the
    partition again.
    """


class SkippedRecordError(ZkConsumerError):
    """Messages between the recorded offset and the one to record are not recorded: the application left them out.

    ``partition`` is the message's partition. Nothing of it can be recorded before they are: let the process end, and
    restart it. It begins at the recorded offset.
    """

    def __init__(self, partition: TopicPartition, reason: str) -> None:
        super().__init__(f"{partition}: {reason}")
        self.partition = partition


class LogTruncatedError(ZkConsumerError):
    """A partition's log was truncated, or its topic was made anew, and ``log.truncation.policy`` is ``raise``.

    Raised by the partition's stream at each ask until ``connector.seek`` says where it goes on. ``partition`` is it,
    ``reached`` the offset up to which it was read, ``diverges`` the first offset that holds something else now, or the
    log's start where that is not known.
    """

    def __init__(self, partition: TopicPartition, reached: int, diverges: int, reason: str) -> None:
        super().__init__(
            f"{partition}: {reason}; it was read up to offset {reached}, and differs from offset {diverges} on. Nothing"
            " of it is handed out until connector.seek(partition, offset) says where to go on"
        )
        self.partition = partition
        self.reached = reached
        self.diverges = diverges
        self.offset = reached


class UnreadableMessageError(ZkConsumerError):
    """A place in a partition that cannot be read. ``KafkaStream.skip`` gives it up and goes on after it.

    ``where`` and ``offset`` name it, ``next_offset`` is where one can go on, -1 where that is not known.
    """

    def __init__(
        self, message: str, where: TopicPartition | None = None, offset: int = -1, next_offset: int = -1
    ) -> None:
        super().__init__(message)
        self.where = where
        self.offset = offset
        self.next_offset = next_offset


class InvalidMessageException(UnreadableMessageError):
    """A message set is corrupt: names topic, partition and offset."""


class MessageSizeTooLargeException(UnreadableMessageError):
    """A message does not fit into the largest allowed fetch: names topic, partition and offset."""
