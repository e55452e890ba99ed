"""All rows. The import adds them to the matrix."""

from tests.faults import rows_links, rows_members, rows_nodes, rows_servers, rows_topics
from tests.faults.lab import ROWS

__all__ = [
    "ROWS",
    "rows_links",
    "rows_members",
    "rows_nodes",
    "rows_servers",
    "rows_topics",
]
