"""``scripts/demo``: a group of consumers on a real cluster, in about a minute and a half.

- ``scenario`` directs the steps, and ``shared_group`` directs step 8, where a Spark query is a member of a group.
  ``weeks_picture`` draws what that query counted.
- ``balanced_scenario`` directs the steps of ``--balance``, with ``balanced_member`` and ``balanced_account``.
- ``flight_producer`` is the data and its producer; ``message_account`` counts lost and repeated messages.
- ``member_process`` and ``spark_process`` are the processes that consume.
- ``group_owners`` reads the owners from ZooKeeper; ``screen`` and ``report`` show the results.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]


def command(module: str, task: Mapping[str, Any]) -> list[str]:
    """Return the command of a process that runs a module of this package. Its folder may be any."""
    return ["/usr/bin/env", f"PYTHONPATH={_ROOT}", sys.executable, "-m", f"{__name__}.{module}", json.dumps(task)]
