"""Settings of the property tests."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says nothing on a busy machine.
settings.register_profile("zkconsumer", deadline=None)
settings.load_profile("zkconsumer")
