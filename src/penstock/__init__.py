"""Durable background work for Python: written once as typed functions, served over five open wires."""

__version__ = "0.1.0"
