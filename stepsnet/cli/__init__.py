"""The command line: one file per command. No other package imports it; commands import torch only when they run."""
