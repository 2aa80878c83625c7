"""What work *is*: pure values and decisions. No sockets, no files, no wall clock of its own."""
