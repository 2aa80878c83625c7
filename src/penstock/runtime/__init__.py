"""How work runs: loops, offload, lifecycle. Knows no wire and no broker, only `core.delivery`.

The door is `penstock.runtime.worker.Worker`; this package imports nothing by itself.
"""
