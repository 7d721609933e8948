"""Detection and segmentation networks around any backbone: Mask R-CNN, Cascade Mask R-CNN and UPerNet."""
