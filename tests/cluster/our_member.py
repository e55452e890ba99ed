"""A member process of our connector, to share a group with the original, to be killed, and to be measured."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.member_process import MemberProcess

_SCRIPT = Path(__file__).parent / "ours" / "group_member.py"


class OurMember(MemberProcess):
    """One member of a group, in our connector. It takes the arguments of any member."""

    who = "ours"

    def command(self) -> list[str]:
        return [sys.executable, str(_SCRIPT)]

    def resident_kilobytes(self) -> int:
        """The memory that the process occupies (VmRSS)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS: the process has ended")
