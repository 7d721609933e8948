"""The command line: thin, one file per command. Nobody imports this room, and no module in it imports torch before it runs."""
