"""One log: its segments, indexes, leader epochs and producer states; reading, recovery, retention and truncation."""
