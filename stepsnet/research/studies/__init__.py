"""Comparisons whose networks, data, seeds and claim are fixed before they run."""
