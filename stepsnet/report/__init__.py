"""Tables, charts and self-contained HTML pages from data. Needs neither torch nor a network."""
