"""Text: sources, tokenizers, prepared token files and training windows."""
