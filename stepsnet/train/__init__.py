"""The one training loop, from a laptop to a cluster: configuration, optimiser, checkpoints, processes, recipes."""
