"""The handlers, a module for each group of paths."""
