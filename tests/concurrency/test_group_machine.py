"""Any order of joins, leaves, deaths, lost connections, expiries, operators' deeds and progress keeps the group's
promises.
"""

from __future__ import annotations

from tests.concurrency.group_machine import SETTINGS, GroupMachine

TestGroup = GroupMachine.TestCase
TestGroup.settings = SETTINGS
