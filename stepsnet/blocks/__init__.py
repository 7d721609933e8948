"""Micro designs: the parts inside a residual block. They know nothing of steps; each works at any width."""
