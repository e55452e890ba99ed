"""A member process of our connector, to share a group with the original, to be killed, and to be measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.member_process import MemberProcess

_SCRIPT = Path(__file__).parent / "ours" / "group_member.py"


class OurMember(MemberProcess):
    """One member of a group, in our connector."""

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
        commit_each: bool = False,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        """Take the arguments of any member. With ``commit_each`` the member commits each message, then reports it."""
        super().__init__(
            zookeeper_connect,
            group,
            topics,
            whitelist=whitelist,
            blacklist=blacklist,
            streams=streams,
            pause_ms=pause_ms,
            properties=properties,
            own={"member.commit": "each"} if commit_each else None,
        )

    def command(self) -> list[str]:
        return [sys.executable, str(_SCRIPT)]

    def resident_kilobytes(self) -> int:
        """The memory that the process occupies (VmRSS)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS: the process has ended")
