"""Readers of pictures and text, and the data sets that need no download."""
