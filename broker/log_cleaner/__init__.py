"""The log cleaner of a broker: chooses the compacted log that gains most from a cleaning, and cleans it beside the event loop."""
