"""OmniQ: leased, grouped queues on Redis, shared with every other OmniQ SDK.

Our own scripts over the same keys (``lua/``), one client for asyncio and one for threads with
the same calls. What may stand in which key and why is told in `penstock.protocols.omniq.wire`.
"""
