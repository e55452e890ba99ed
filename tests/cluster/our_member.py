"""Our connector as a process of its own: to share a group with the original, to be killed, to be measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.member_process import MemberProcess

_SCRIPT = Path(__file__).parent / "ours" / "group_member.py"


class OurMember(MemberProcess):
    """One member of a group, played by our connector."""

    who = "ours"

    def __init__(
        self,
        zookeeper_connect: str,
        group: str,
        topics: Mapping[str, int] | None = None,
        *,
        whitelist: str | None = None,
        blacklist: str | None = None,
        streams: int = 1,
        pause_ms: int = 0,
        stop_after: int | None = None,
        commit_each: bool = False,
        columns: bool = False,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        """Arguments: as for any member; ``stop_after`` so many messages it leaves; ``commit_each`` message before it is
        reported; with ``columns`` it takes batches, pauses after each, and ends after the one with that message.
        """
        own: dict[str, object] = {}
        if stop_after is not None:
            own["member.stop.after"] = stop_after
        if commit_each:
            own["member.commit"] = "each"
        if columns:
            own["member.columns"] = 1
        super().__init__(
            zookeeper_connect,
            group,
            topics,
            whitelist=whitelist,
            blacklist=blacklist,
            streams=streams,
            pause_ms=pause_ms,
            properties=properties,
            own=own,
        )

    def command(self) -> list[str]:
        return [sys.executable, str(_SCRIPT)]

    def resident_kilobytes(self) -> int:
        """The memory that the process occupies (VmRSS)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS: the process has ended")
