"""The kill harness and its judges, shared by all protocols.

`harness` runs and kills programs, `points` names where, `proxy` spoils the connection,
`invariants` judges what is left, `scenario` puts them together, `servers` brings a broker.
"""
