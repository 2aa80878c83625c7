"""`make demo`, whole and small: its table, its exit code, and what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from examples.demo.act import Proof, Row
from examples.demo.acts.omniq import Found, groups_row
from penstock.core.ids import short_token

ROOT = Path(__file__).parents[2]
MARK = "DEMO_UNDER_TEST"
ROW = re.compile(r"^ ?(\S.*?) {2,}.*? (\d+) .*? (ok|WRONG) *$", re.M)

pytestmark = pytest.mark.timeout(400)


class Demo:
    """The demo in a process of its own; everything it starts inherits a mark."""

    def __init__(self, *arguments: str, **environ: str) -> None:
        self.mark = short_token()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "examples.demo", *arguments],
            cwd=ROOT,
            env={**os.environ, MARK: self.mark, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out, err

    def left_behind(self) -> list[psutil.Process]:
        """Processes it started that still live, after a generous while for the last to go."""
        return psutil.wait_procs(self._marked(), timeout=30)[1]

    def _marked(self) -> Sequence[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    found.append(process)
            except psutil.Error:  # gone, or not ours to look at
                continue
        return found


def test_the_demo_loses_nothing_although_a_worker_is_killed_and_leaves_nothing_running() -> None:
    demo = Demo("--scale", "0.2", "--act", "natq")

    code, out, err = demo.ended()
    sent = {row[1]: (int(row[2]), row[3]) for row in ROW.finditer(out)}

    assert code == 0, out + err
    assert "nothing was lost" in out
    assert {verdict for _, verdict in sent.values()} == {"ok"}
    assert sent["thumbnail"][0] == 48
    assert {"charge", "refund", "notify", "checksum", "transcode", "backup", "price"} < set(sent)
    assert "was killed with SIGKILL" in err
    assert demo.left_behind() == []


def test_the_same_processes_lose_nothing_on_omniq_while_they_answer_on_natq() -> None:
    demo = Demo("--scale", "0.2", "--act", "omniq")

    code, out, err = demo.ended()
    sent = {row[1]: (int(row[2]), row[3]) for row in ROW.finditer(out)}

    assert code == 0, out + err
    assert "nothing was lost" in out
    assert {verdict for _, verdict in sent.values()} == {"ok"}
    assert sent["parcel"][0] == 24
    assert {"charge", "refund", "notify", "backup", "(groups)", "price", "(the lanes)"} < set(sent)
    assert "was killed with SIGKILL" in err
    assert demo.left_behind() == []


def test_two_parcels_of_one_customer_at_once_fail_the_proof() -> None:
    def carried(customer: str, from_s: float, to_s: float) -> Found:
        return Found({"customer": customer, "from_s": from_s, "to_s": to_s}, None)

    apart = {"a": carried("ann", 1, 2), "b": carried("ann", 2, 3), "c": carried("bob", 1, 3)}

    assert groups_row(apart).holds
    assert not groups_row({**apart, "d": carried("ann", 2.5, 4)}).holds


def test_the_demo_ends_at_once_and_clean_when_interrupted() -> None:
    demo = Demo("--act", "natq")
    assert demo.process.stderr is not None
    for line in demo.process.stderr:
        if "are in the queue" in line:
            break

    demo.process.send_signal(signal.SIGINT)
    code, out, err = demo.ended()

    assert code == 130, out + err
    assert "Traceback" not in err
    assert demo.left_behind() == []


def test_without_a_server_program_the_demo_says_so_in_a_sentence() -> None:
    code, _, err = Demo(PENSTOCK_NATS_SERVER="/no/such/nats-server").ended()

    assert code == 3
    assert "/no/such/nats-server" in err
    assert "Traceback" not in err


def test_a_row_that_does_not_hold_fails_the_proof() -> None:
    good = Row("a", "", 1, "1 succeeded", "1 succeeded")
    bad = Row("b", "", 2, "2 succeeded", "1 LOST, 1 succeeded")

    assert Proof([good]).holds
    assert not Proof([good, bad]).holds
    assert not Proof([]).holds
