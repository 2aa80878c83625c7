"""The process a contender runs in: reads what to do, does it, prints the figures.

echo '{"program": "module:function", …}' | python -m bench.kit.child
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
from typing import Any

from bench.kit.run import MARK, Run


def main() -> None:
    told = json.loads(sys.stdin.readline())
    run = Run(told)
    module, _, name = told["program"].partition(":")
    function = getattr(importlib.import_module(module), name)
    if inspect.iscoroutinefunction(function):
        with asyncio.Runner(loop_factory=_loop_factory(told["loop"])) as runner:
            runner.run(function(run))
    else:
        function(run)
    if run.meter is not None:
        print(MARK + json.dumps(run.meter.figures()), flush=True)


def _loop_factory(loop: str) -> Any:
    if loop == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    return None


if __name__ == "__main__":
    main()
