"""Directed stories, each from the history of a real bug, by their numbers: S01, S02, ..."""
