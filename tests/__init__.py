"""Tests of zkconsumer. A package, so that test modules can say ``from tests.timing import eventually``."""
