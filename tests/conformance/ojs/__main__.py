"""``python -m tests.conformance.ojs URL [URL ...]``: score a server that runs somewhere.

The exit code is 0 when every case passed, 1 when one failed, 2 when nothing could be run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import httpx

from tests.conformance.ojs import suites
from tests.conformance.ojs.case import Case, load
from tests.conformance.ojs.modes import Mode
from tests.conformance.ojs.report import summary
from tests.conformance.ojs.runner import BOTH, Runner, Verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.ojs", description=__doc__)
    parser.add_argument("url", nargs="+", help="base URLs; several are asked in turn")
    parser.add_argument("--level", type=int, action="append", help="only this level")
    parser.add_argument("--case", help="only cases whose id or name contains this")
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], help="only this meaning")
    parser.add_argument("--suites", type=Path, help="the folder of the cases")
    asked = parser.parse_args()
    folder = asked.suites or suites.find()
    if folder is None:
        print(suites.missing(), file=sys.stderr)
        return 2
    cases = [
        case
        for case in load(folder)
        if (not asked.level or case.level in asked.level)
        and (not asked.case or asked.case in case.key)
    ]
    modes = (Mode(asked.mode),) if asked.mode else BOTH
    verdicts = asyncio.run(_score(asked.url, cases, modes))
    print(summary(verdicts))
    if not verdicts:
        print("no case fits", file=sys.stderr)
        return 2
    return 0 if all(verdict.passed for verdict in verdicts) else 1


async def _score(urls: list[str], cases: list[Case], modes: tuple[Mode, ...]) -> list[Verdict]:
    verdicts: list[Verdict] = []
    async with httpx.AsyncClient(follow_redirects=True) as http:
        runner = Runner(urls, http)
        for number, case in enumerate(cases, 1):
            print(f"\r{number}/{len(cases)} {case.key:<60}", end="", file=sys.stderr)
            verdicts += await runner.run(case, modes)
    print(file=sys.stderr)
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
