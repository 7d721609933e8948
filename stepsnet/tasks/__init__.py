"""What is being learned: classification, language."""
