"""A run in words and pictures: events as sentences, the logs side by side, the timeline."""
