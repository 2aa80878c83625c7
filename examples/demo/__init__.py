"""The demo: real servers, real workers, a kill on the way, and a table that proves the rest.

    make demo                                   # or: python -m examples.demo --help

It is a play in acts, one for each protocol or part that has something to show. An act gets a
`Stage` (servers and workers, gone when the play is over) and a `Show` (bars and lines), and
hands back rows of what had to come out and what did. `acts.ACTS` lists them; add yours there.
"""
