"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("tests", deadline=None)  # An example that is slow on a busy machine is no failure.
settings.load_profile("tests")
