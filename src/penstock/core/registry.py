"""The registry: which tasks an application declares. Pure; nothing is connected here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from penstock.core.binding import Binding
from penstock.core.errors import ConfigError, UnknownName
from penstock.core.invocation import ProtocolName
from penstock.core.policy import Backoff, RetryPolicy
from penstock.core.task import InputShape, RunsIn, Task, check_name, length_of_time

__all__ = ["Registry"]


class Registry:
    """Tasks by name. Two tasks cannot share a name on any protocol."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    def get(self, name: str) -> Task:
        """The task called ``name``. Raises `UnknownName` with the nearest one."""
        try:
            return self._tasks[name]
        except KeyError:
            raise UnknownName("task", name, self._tasks) from None

    def of(self, fn: Callable[..., Any] | str) -> Task:
        """The task that a function or a name stands for."""
        if isinstance(fn, str):
            return self.get(fn)
        for task in self._tasks.values():
            if task.fn == fn:  # bound methods are equal, never identical
                return task
        raise UnknownName("task", getattr(fn, "__name__", repr(fn)), self._tasks)

    def add(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        names: Mapping[str, str] | None = None,
        retries: int | None = None,
        retry: RetryPolicy | None = None,
        backoff: Backoff | None = None,
        timeout: timedelta | float | str | None = None,
        reply: bool = False,
        cpu: bool = False,
        concurrency: int | None = None,
        queue: str = "",
        input: InputShape = "auto",
        meta: Mapping[str, Any] | None = None,
    ) -> Task:
        """Declare ``fn`` as a task; every mistake is told here, not at the first job."""
        own_name = name or str(getattr(fn, "__name__", ""))
        own_names = dict(names or {})
        check_name(own_name, own_names)
        if retry is not None and (retries is not None or backoff is not None):
            raise ConfigError(
                f"task {own_name!r} has retry= and also retries= or backoff=",
                remedy="say it all in the retry policy",
            )
        _check_number(own_name, "retries", retries, 0)
        _check_number(own_name, "concurrency", concurrency, 1)
        binding = Binding.of(fn, shape=input)
        task = Task(
            name=own_name,
            fn=fn,
            binding=binding,
            runs_in=_runs_in(own_name, binding, cpu=cpu),
            retry=retry or RetryPolicy.of_retries(retries, backoff),
            timeout=length_of_time(timeout),
            replies=reply,
            concurrency=concurrency,
            queue=queue,
            names=own_names,
            meta=dict(meta or {}),
        )
        self._insert(task)
        return task

    def served_on(self, protocol: ProtocolName) -> dict[str, Task]:
        """Tasks by the name they carry on ``protocol``."""
        return {task.name_on(protocol): task for task in self._tasks.values()}

    def _insert(self, task: Task) -> None:
        for other in self._tasks.values():
            if other.name == task.name:
                raise ConfigError(
                    f"two tasks are called {task.name!r}",
                    remedy="give one of them another name=",
                    code="task.duplicate",
                )
            _refuse_shared_wire_name(task, other)
        self._tasks[task.name] = task


def _refuse_shared_wire_name(task: Task, other: Task) -> None:
    for protocol in {*task.names, *other.names}:
        mine = task.names.get(protocol, task.name)
        if mine == other.names.get(protocol, other.name):
            raise ConfigError(
                f"tasks {other.name!r} and {task.name!r} are both called {mine!r} on {protocol}",
                remedy="give one of them another name in names=",
                code="task.duplicate",
            )


def _runs_in(name: str, binding: Binding, *, cpu: bool) -> RunsIn:
    if binding.is_async:
        if cpu:
            raise ConfigError(
                f"task {name!r} is async and cpu=True",
                remedy="a cpu=True handler runs in another process: make it a plain def",
            )
        return RunsIn.LOOP
    return RunsIn.PROCESS if cpu else RunsIn.THREAD


def _check_number(task: str, word: str, given: object, least: int) -> None:
    """Refuse what is no whole number of at least ``least``; `None` says nothing."""
    if given is None or (type(given) is int and given >= least):
        return
    raise ConfigError(
        f"{word} of task {task!r} is a whole number of at least {least}, not {given!r}",
        remedy=f"leave {word} out for the default",
    )
