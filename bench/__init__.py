"""Benchmarks: Penstock beside its peers, interleaved in one session. `python -m bench` lists them.

A suite is a module here with a list ``SCENARIOS`` (see `bench.kit.model`); its contenders are
plain functions in ``bench/peers`` that each run alone in a fresh process.
"""
