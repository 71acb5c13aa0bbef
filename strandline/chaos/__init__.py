"""Faults on purpose, under a steady load, with a verdict: the scenarios that tests, the tutorial and a person share."""
