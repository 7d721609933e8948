"""Tables, figures and self-contained HTML. This room draws what it is given and needs neither torch nor a network."""
