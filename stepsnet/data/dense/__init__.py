"""Annotated images: boxes, instance masks and segmentation maps."""
