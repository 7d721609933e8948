"""Training: `Trainer`, its configuration and recipes, data loading, optimisers, checkpoints, several processes."""
