"""Shared by the tests of several folders."""
