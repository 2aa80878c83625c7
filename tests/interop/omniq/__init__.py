"""PyPI omniq 1.7.0 and 4.0.0 beside our clients: the 33 scenarios, in both directions.

`peer_env` makes an environment for each version, `peer_main` is what runs in it, `sides` gives
ours and theirs one surface. The package is GPL: it runs in processes of its own and its source
is no business of ours.
"""
