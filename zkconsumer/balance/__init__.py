"""Balance by messages: more workers than partitions, with an acknowledgement for each message.

A reader takes fetched chunks, lanes keep the order, executors run handlers, a ledger of each partition notes outcomes.
"""
