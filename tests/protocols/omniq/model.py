"""What an OmniQ queue is, in plain Python: the reference that random histories are held against."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Job", "Model"]


@dataclass
class Job:
    job_id: str
    gid: str
    max_attempts: int
    timeout: int
    backoff: int
    attempt: int = 0
    state: str = "wait"
    due: int = 0
    lock_until: int = 0


@dataclass
class Model:
    jobs: dict[str, Job] = field(default_factory=dict)
    wait: list[str] = field(default_factory=list)
    lines: dict[str, list[str]] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    ready: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    completed: list[str] = field(default_factory=list)
    paused: bool = False
    grouped_first: bool = True

    def publish(self, job: Job, limit: int, due: int, now: int) -> bool:
        """Whether the job is new; a live one is kept."""
        old = self.jobs.get(job.job_id)
        if old is not None and old.state in ("wait", "active", "delayed"):
            return False
        if old is not None:
            self._forget(old)
        self.jobs[job.job_id] = job
        if job.gid and limit > 0 and job.gid not in self.limits:
            self.limits[job.gid] = limit
            self._ready_if_able(job.gid, now)
        if due > now:
            job.state, job.due = "delayed", due
        else:
            self._push(job, now)
        return True

    def reserve(self, now: int) -> Job | None:
        takers = [self._take_grouped, self._take_ungrouped]
        if not self.grouped_first:
            takers.reverse()
        for take in takers:
            job = take(now)
            if job is not None:
                self.grouped_first = not self.grouped_first
                job.state, job.attempt = "active", job.attempt + 1
                job.lock_until = now + job.timeout
                if job.gid:
                    self._ready_if_able(job.gid, now)
                return job
        return None

    def end(self, job: Job, verb: str, delay: int, now: int) -> str:
        """End a lease; what the status must be."""
        if verb == "succeed":
            job.state = "completed"
            self.completed.insert(0, job.job_id)
            self._freed(job, now)
            for old in self.completed[100:]:
                del self.jobs[old]
            del self.completed[100:]
            return "OK"
        if verb in ("snooze", "release"):
            job.attempt -= 1
            if verb == "snooze" and delay > 0:
                job.state, job.due = "delayed", now + delay
            else:
                self._push(job, now, front=verb == "release")
            self._freed(job, now)
            return "OK"
        delay = job.backoff if verb == "fail" else delay
        if verb == "reject" or job.attempt >= job.max_attempts:
            job.state = "failed"
            self.failed.insert(0, job.job_id)
        else:
            job.state, job.due = "delayed", now + delay
        self._freed(job, now)
        return "FAILED" if job.state == "failed" else "RETRY"

    def promote(self, now: int) -> int:
        due = sorted(
            (job.due, job.job_id)
            for job in self.jobs.values()
            if job.state == "delayed" and job.due <= now
        )
        for _, job_id in due:
            self._push(self.jobs[job_id], now)
        return len(due)

    def reap(self, now: int) -> int:
        late = sorted(
            (job.lock_until, job.job_id)
            for job in self.jobs.values()
            if job.state == "active" and job.lock_until <= now
        )
        for _, job_id in late:
            self.end(self.jobs[job_id], "fail", 0, now)
        return len(late)

    def retry(self, job: Job, now: int) -> None:
        self.failed.remove(job.job_id)
        job.attempt = 0
        self._push(job, now)

    def remove(self, job: Job) -> None:
        self._forget(job)
        if job.gid and not self.lines.get(job.gid):
            self.ready.pop(job.gid, None)

    def running(self, gid: str) -> int:
        return sum(job.state == "active" and job.gid == gid for job in self.jobs.values())

    def _push(self, job: Job, now: int, *, front: bool = False) -> None:
        job.state = "wait"
        line = self.lines.setdefault(job.gid, []) if job.gid else self.wait
        line.insert(0 if front else len(line), job.job_id)
        if job.gid:
            self._ready_if_able(job.gid, now)

    def _ready_if_able(self, gid: str, now: int) -> None:
        if self.lines.get(gid) and self.running(gid) < self.limits.get(gid, 1):
            self.ready.setdefault(gid, now)

    def _freed(self, job: Job, now: int) -> None:
        if job.gid:
            self._ready_if_able(job.gid, now)

    def _take_grouped(self, now: int) -> Job | None:
        if not self.ready:
            return None
        gid = min(self.ready, key=lambda name: (self.ready[name], name))
        del self.ready[gid]
        return self.jobs[self.lines[gid].pop(0)]

    def _take_ungrouped(self, now: int) -> Job | None:
        return self.jobs[self.wait.pop(0)] if self.wait else None

    def _forget(self, job: Job) -> None:
        for line in (self.wait, self.failed, self.completed, self.lines.get(job.gid, [])):
            if job.job_id in line:
                line.remove(job.job_id)
        del self.jobs[job.job_id]
