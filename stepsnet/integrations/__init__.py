"""Adapters for timm and transformers. Each library is imported when its module here is imported."""
