"""A black-box runner for the public Open Job Spec cases.

Everything here is written from the language's description alone: it knows HTTP and JSON, and
nothing of Penstock. Any server can be put under test::

    python -m tests.conformance.ojs http://127.0.0.1:8080 [http://127.0.0.1:8081 ...]

The cases are data that stays outside of the project: `suites.find` tells where they are
looked for.

- `paths`, `matchers`, `templates`: the three small languages inside a case.
- `case`: a case as it is written, unknown keys refused.
- `judge`: the assertions of a step, in either meaning (`modes`).
- `runner`: steps into requests, cases into verdicts.
- `report`: verdicts into the level that was reached.
"""
