"""The contenders: one module per library and protocol, each function runs in its own process."""
