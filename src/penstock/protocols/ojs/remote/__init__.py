"""Open Job Spec over HTTP, from the other side: for programs whose job server is elsewhere.

Any server that speaks the HTTP binding will do, ours or another's. Where one is ours it is
asked for more (long polling, many acknowledgements at once), and does without elsewhere.
"""
