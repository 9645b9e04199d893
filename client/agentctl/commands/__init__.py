"""One module per group of commands, imported only when that command runs."""
