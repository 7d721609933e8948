"""The run folder: its files, read and written here only."""
