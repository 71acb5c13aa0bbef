"""Moves of logs between the directories of a broker."""
