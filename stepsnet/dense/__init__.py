"""Detectors on torchvision's framework: pyramids for every backbone, Mask R-CNN and Cascade Mask R-CNN, and stand-in operators."""
