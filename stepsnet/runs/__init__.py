"""The run folder: the only place that knows its files. No torch."""
