"""The supervisor: several processes as one, replaced when they end, drained together."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil

from tests.runtime.programs import gone, running

SUPERVISOR = """
    import asyncio, logging, sys
    from penstock.runtime.supervisor import Supervisor
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    count, child = int(sys.argv[1]), sys.argv[2]
    supervisor = Supervisor(
        [sys.executable, "-c", child], count, first_pause_s=0.05, kill_after_s=30
    )
    sys.exit(asyncio.run(supervisor.run()))
"""

WORKER = """
import asyncio, sys
from penstock.runtime.worker import Worker

async def main():
    worker = Worker({})
    serving = asyncio.create_task(worker.run())
    while worker.state != "running":
        await asyncio.sleep(0)
    import os
    print("child", os.getpid(), flush=True)
    return await serving

code = asyncio.run(main())
print("drained with", int(code), flush=True)
sys.exit(code)
"""

# Says when it has begun, waits for the word of its parent, and only then listens to signals.
LATE = (
    """
import os, signal, sys, time
print("child", os.getpid(), flush=True)
while signal.SIGTERM not in signal.sigpending():
    time.sleep(0.005)
"""
    + WORKER
)


def pid_in(line: str) -> int:
    return int(line.rsplit(maxsplit=1)[-1])


def test_sigterm_drains_every_child_and_ends_clean() -> None:
    with running(SUPERVISOR, "2", WORKER) as program:
        pids = [pid_in(program.wait_for("child")) for _ in range(2)]

        program.send(signal.SIGTERM)

        assert program.ended() == 0
        assert program.text.count("drained with 0") == 2
        assert gone(*pids)


def test_a_signal_before_a_child_listens_is_kept_until_it_does() -> None:
    with running(SUPERVISOR, "1", LATE) as program:
        program.wait_for("child")

        program.send(signal.SIGTERM)  # blocked in the child: it waits for us to see it pending

        assert program.ended() == 0
        assert "drained with 0" in program.text


def test_a_child_that_the_passed_on_signal_ended_is_no_failure() -> None:
    deaf = """
import os, signal, time
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
print("child", os.getpid(), flush=True)
time.sleep(60)
"""
    with running(SUPERVISOR, "1", deaf) as program:
        program.wait_for("child")

        program.send(signal.SIGTERM)

        assert program.ended() == 0


def test_a_child_that_ends_badly_while_stopping_is_a_failure() -> None:
    bad = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
print("child", os.getpid(), flush=True)
time.sleep(60)
"""
    with running(SUPERVISOR, "1", bad) as program:
        program.wait_for("child")

        program.send(signal.SIGTERM)

        assert program.ended() == 3


def test_a_killed_child_is_replaced_and_the_other_goes_on() -> None:
    with running(SUPERVISOR, "2", WORKER) as program:
        first, second = (pid_in(program.wait_for("child")) for _ in range(2))

        os.kill(first, signal.SIGKILL)
        assert "SIGKILL" in program.wait_for("starting another")
        third = pid_in(program.wait_for("child"))

        assert third not in (first, second)
        assert psutil.pid_exists(second)
        program.send(signal.SIGTERM)
        assert program.ended() == 0


def test_a_recycled_child_is_replaced_at_once_and_without_complaint(tmp_path: Path) -> None:
    recycled_once = (
        """
import os, sys
from pathlib import Path
mark = Path(os.environ["MARK"])
if not mark.exists():
    mark.touch()
    print("recycling", flush=True)
    sys.exit(88)
"""
        + WORKER
    )
    with running(SUPERVISOR, "1", recycled_once, MARK=str(tmp_path / "mark")) as program:
        program.wait_for("child")
        assert "recycling" in program.text
        assert "starting another" not in program.text
        program.send(signal.SIGTERM)
        assert program.ended() == 0


def test_a_child_that_keeps_crashing_is_told_as_such() -> None:
    with running(SUPERVISOR, "1", "raise SystemExit(7)") as program:
        assert "code 7" in program.wait_for("starting another")
        program.wait_for("has crashed 5 times in a row")

        program.send(signal.SIGTERM)

        assert program.ended() == 0


def test_a_command_that_is_wrong_is_not_tried_again() -> None:
    with running(SUPERVISOR, "2", "raise SystemExit(2)") as program:
        assert program.ended() == 2
        assert "starting another" not in program.text


def test_a_fleet_that_has_begun_well_goes_on_when_a_later_start_is_wrong(tmp_path: Path) -> None:
    once = f"""
from pathlib import Path
begun = Path({str(tmp_path / "begun")!r})
if begun.exists():
    raise SystemExit(2)
begun.touch()
raise SystemExit(7)
"""
    with running(SUPERVISOR, "1", once) as program:
        assert "code 7" in program.wait_for("starting another")
        assert "code 2" in program.wait_for("starting another")

        program.send(signal.SIGTERM)

        assert program.ended() == 0


def test_a_process_that_cannot_be_started_does_not_end_the_others() -> None:
    missing = SUPERVISOR.replace('[sys.executable, "-c", child]', '["/no/such/program"]')
    with running(missing, "2", "") as program:
        program.wait_for("worker process 1 cannot be started")
        program.wait_for("worker process 2 ended with code 1; starting another")

        program.send(signal.SIGTERM)

        assert program.ended() == 0


def test_children_drain_when_the_supervisor_is_killed() -> None:
    with running(SUPERVISOR, "2", WORKER) as program:
        pids = [pid_in(program.wait_for("child")) for _ in range(2)]

        program.send(signal.SIGKILL)

        for _ in range(2):
            assert program.wait_for("drained").endswith("0")  # not forced: one signal each
        assert gone(*pids)


def test_a_child_that_drains_already_is_not_hurried_by_the_end_of_its_supervisor() -> None:
    counts = """
import asyncio, os
from penstock.runtime.signals import StopSignals
from penstock.runtime.supervisor import die_with_supervisor

async def main():
    parent, heard = os.getppid(), []
    with StopSignals() as signals:
        signals.tell(lambda number: (heard.append(number), print("heard one", flush=True)))
        die_with_supervisor()
        print("child", os.getpid(), flush=True)
        while os.getppid() == parent:
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.5)
        print("heard in all:", len(heard), flush=True)

asyncio.run(main())
"""
    with running(SUPERVISOR, "1", counts) as program:
        program.wait_for("child")
        program.send(signal.SIGTERM)
        program.wait_for("heard one")

        program.send(signal.SIGKILL)

        assert program.wait_for("heard in all").endswith("1")


def test_a_child_that_starts_slowly_still_hears_that_its_supervisor_is_gone() -> None:
    orphan_first = (
        """
import os, sys
print("child", os.getpid(), flush=True)
sys.stdin.read()  # ends with the supervisor
"""
        + WORKER
    )
    with running(SUPERVISOR, "1", orphan_first, stdin=subprocess.PIPE) as program:
        program.wait_for("child")

        program.send(signal.SIGKILL)
        program.close_stdin()

        assert program.wait_for("drained").endswith("0")


def test_what_a_child_starts_is_no_child_of_the_supervisor() -> None:
    curious = """
import subprocess, sys
from penstock.runtime.supervisor import supervised
mine = supervised()
code = "from penstock.runtime.supervisor import supervised; print(supervised())"
its = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
print("supervised:", mine, its, flush=True)
sys.exit(88)
"""
    with running(SUPERVISOR, "1", curious) as program:
        assert program.wait_for("supervised:") == "supervised: True False"


def test_children_have_a_process_group_of_their_own() -> None:
    """Ctrl-C in a terminal goes to a whole group; passed on as well it would come twice."""
    with running(SUPERVISOR, "1", WORKER) as program:
        child = pid_in(program.wait_for("child"))

        assert os.getpgid(child) == child != os.getpgid(program.pid)

        program.send(signal.SIGINT)
        assert program.ended() == 0


def test_a_second_signal_is_passed_on_and_forces_the_children() -> None:
    stubborn = """
import os, signal, sys, time
count = 0
def heard(*_):
    global count
    count += 1
    os.write(1, f"heard {count}\\n".encode())  # print() may be under way already
    if count == 2:
        sys.exit(130)
signal.signal(signal.SIGTERM, heard)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
print("child", os.getpid(), flush=True)
while True:
    time.sleep(60)
"""
    with running(SUPERVISOR, "1", stubborn) as program:
        program.wait_for("child")

        program.send(signal.SIGTERM)
        program.wait_for("heard 1")
        program.send(signal.SIGTERM)

        assert program.ended() == 130


def test_each_child_knows_its_place() -> None:
    says = """
from penstock.runtime.supervisor import place_number
print("place", place_number(), flush=True)
import signal
signal.sigwait([signal.SIGTERM])
"""
    with running(SUPERVISOR, "3", says) as program:
        places = {program.wait_for("place").split()[-1] for _ in range(3)}
        assert places == {"1", "2", "3"}
        program.send(signal.SIGTERM)
        assert program.ended() == 0
