"""`python -m bench` lists the suites; `python -m bench natq` runs one; `--quick` for a short run.

Tables are Markdown; ``--write PAGE`` puts them between ``<!-- bench:NAME -->`` and
``<!-- /bench:NAME -->`` of that page.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType

import bench
from bench.kit.report import about_this_machine, ratio_lines, table
from bench.kit.session import Results, hold


def main() -> int:
    options = _options()
    suites = _suites()
    if not options.suites:
        return _list(suites)
    unknown = [name for name in options.suites if name not in suites]
    if unknown:
        print(f"no suite {unknown[0]!r}; there are {', '.join(sorted(suites))}", file=sys.stderr)
        return 2
    return max(_run(name, suites[name], options) for name in options.suites)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suites", nargs="*", help="which to run; none: list them")
    parser.add_argument("--quick", action="store_true", help="small counts, two rounds")
    parser.add_argument("--rounds", type=int, help="how often each contender has its turn")
    parser.add_argument("--only", action="append", default=[], help="scenario, may be repeated")
    parser.add_argument("--json", type=Path, help="write every single measurement there")
    parser.add_argument("--write", type=Path, help="put the tables into this page")
    return parser.parse_args()


def _suites() -> dict[str, ModuleType]:
    found = {}
    for module in pkgutil.iter_modules(bench.__path__):
        if not module.ispkg and not module.name.startswith("_"):
            found[module.name] = importlib.import_module(f"bench.{module.name}")
    return {name: module for name, module in found.items() if hasattr(module, "SCENARIOS")}


def _list(suites: dict[str, ModuleType]) -> int:
    for name, suite in sorted(suites.items()):
        print(f"{name}: {(suite.__doc__ or '').strip().splitlines()[0]}")
        for scenario in suite.SCENARIOS:
            print(f"  {scenario.name:12} {scenario.title}")
    return 0


def _run(name: str, suite: ModuleType, options: argparse.Namespace) -> int:
    chosen = [one for one in suite.SCENARIOS if not options.only or one.name in options.only]
    lines = [about_this_machine(getattr(suite, "PACKAGES", ())), ""]
    print(lines[0], flush=True)
    ratios: list[str] = []
    measured: list[Results] = []
    for scenario in chosen:
        results = hold(scenario, quick=options.quick, rounds=options.rounds, say=_aside)
        measured.append(results)
        shown = [*table(results), ""]
        goals = list(ratio_lines(results, name))
        print("\n".join(["", *shown, *goals]), flush=True)
        lines += shown
        ratios += goals
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    lines += [f"Load average at the end: {load}.", "", "```text", *ratios, "```"]
    print("\n".join(["", *ratios]))
    if options.json is not None:
        raw = {one.scenario.name: one.rounds for one in measured}
        options.json.write_text(json.dumps(raw, indent=1))
    if options.write is not None:
        _write(options.write, name, "\n".join(lines))
    return 1 if any("penstock" in fault for one in measured for fault in one.faults) else 0


def _aside(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _write(page: Path, name: str, text: str) -> None:
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    whole = page.read_text("utf-8")
    if not pattern.search(whole):
        raise SystemExit(f"{page} has no place for the tables: add {begin} and {end} to it")
    page.write_text(pattern.sub(lambda _: f"{begin}\n{text}\n{end}", whole), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
