"""Where work *lives*: the NATS connection and its fast path, streams, buckets, embedded servers.

A stranger to `penstock.runtime`: the two meet only inside a protocol room.
"""
