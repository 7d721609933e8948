"""Tasks: classification, language, detection, segmentation. Each turns a batch into a loss and metrics."""

TASKS = ("classification", "language", "detection", "segmentation")
