"""What can be seen of a running worker: logs, metrics and traces."""
