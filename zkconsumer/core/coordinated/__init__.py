"""What a group coordinated by a broker decides: the messages of members to each other, who gets what, what to do next.

Responsible for the bytes that members exchange through the coordinator (``protocol``), the strategies of the group's
leader (``assignors`` and beside it), what to do about each error (``remedies``), and when to join, sync and leave.
Pure; any thread. Mirrors the Java consumer's ``ConsumerProtocol``, assignors and ``ConsumerCoordinator``; what asks a
broker lives in ``brokers``, the thread that performs it elsewhere.
"""
