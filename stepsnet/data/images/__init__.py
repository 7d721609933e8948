"""Image data sets, their transforms and augmentations."""
