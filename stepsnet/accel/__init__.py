"""Optional CPU kernels."""
