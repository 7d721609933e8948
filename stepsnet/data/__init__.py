"""Readers of images and text, and data sets that need no download."""
