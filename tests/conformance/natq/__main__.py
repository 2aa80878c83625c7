"""The suite's command line; see the package's own page for what a worker has to serve."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from difflib import get_close_matches

from tests.conformance.natq.registry import Failed, checks
from tests.conformance.natq.suite import chosen, run_suite


def main() -> int:
    """0 if every check that ran passed, 1 if one failed, 2 for an unusable call."""
    args = _parsed()
    if args.list:
        for check in checks.values():
            tasks = f" [{' '.join(check.needs)}]" if check.needs else ""
            print(f"{check.name:34} {check.level:6} {check.promise}{tasks}")
        return 0
    selected = chosen(level=args.level, only=args.only or (), slow=args.slow)
    if not selected:
        near = get_close_matches(args.only[0], checks, n=1) if args.only else []
        hint = f"; did you mean {near[0]}?" if near else ""
        print(f"no check is named {args.only}{hint}", file=sys.stderr)
        return 2
    try:
        report = asyncio.run(
            run_suite(shlex.split(args.worker), selected, nats_url=args.nats, say=print)
        )
    except Failed as failure:
        print(f"the worker cannot be judged: {failure}", file=sys.stderr)
        return 1
    scores = [f"compat {report.score('both')}"]
    if args.level != "compat":
        scores.insert(0, f"strict {report.score()}")
    print(", ".join(scores))
    return 1 if report.of("FAIL") else 0


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.natq", description=__doc__)
    parser.add_argument("--worker", help="command that starts the worker; it is given NATS_URL")
    parser.add_argument("--nats", help="judge on this server instead of starting one")
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--strict", dest="level", action="store_const", const="strict")
    level.add_argument("--compat", dest="level", action="store_const", const="compat")
    parser.add_argument("--only", action="append", metavar="NAME", help="a name or its beginning")
    parser.add_argument("--slow", action="store_true", help="also what takes minutes")
    parser.add_argument("--list", action="store_true", help="names, levels and promises")
    args = parser.parse_args()
    if not args.list and not args.worker:
        parser.error("--worker is needed: the command that starts the worker under test")
    return args


if __name__ == "__main__":
    sys.exit(main())
