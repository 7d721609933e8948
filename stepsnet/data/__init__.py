"""Data sets of images, annotated images and text."""
