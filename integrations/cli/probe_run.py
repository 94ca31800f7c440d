"""`kvferry probe run`: measure, judge, tell, and do so again."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.cli.probe_claims import Claims
from kvferry.integrations.cli.probe_findings import Finding, Judge, Key, to_keep
from kvferry.integrations.cli.probe_former import in_file, in_store
from kvferry.integrations.cli.probe_hosts import Agents, Host, described
from kvferry.integrations.cli.probe_outputs import Outputs, check_plot
from kvferry.integrations.cli.probe_said import Said, about, say
from kvferry.integrations.cli.probe_table import paths_table
from kvferry.integrations.learning.progress import progress
from kvferry.integrations.probe.measured import Measured
from kvferry.integrations.probe.run import Progress, Scope, probe
from kvferry.models.paths.fit import Fit
from kvferry.models.paths.probed import Probed

NAMED = 3


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command was told; None: not wanted."""

    addresses: tuple[str, ...]
    transports: tuple[str, ...] | None
    scope: Scope
    token: str | None
    device: str
    claims: Claims
    expect: str | None
    outputs: Outputs
    watch_s: float | None
    as_json: bool


class Runs:
    """One probe after the other, each held against the ones before."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.said = Said(further=bool(asked.outputs))
        self.before: dict[Key, Probed] = {}
        self.written: dict[Key, Fit] = {}
        self.states: dict[Key, tuple[object, ...]] = {}
        self.told: set[str] = set()
        self.rounds = 0

    async def all(self) -> None:
        """CommandError when a path has no figures, does not meet what was expected, or cannot be written."""
        asked, outputs = self.asked, self.asked.outputs
        if outputs.plot is not None:
            check_plot(outputs.plot)
        self.written = in_file(outputs.toml) if outputs.toml else {}
        if outputs.redis:
            self.before = await in_store(outputs.redis, outputs.namespace, _complain)
        while True:
            began_s = time.monotonic()
            found = await self._once()
            if asked.watch_s is None:
                return _check(found, asked.expect, outputs.failed)
            await asyncio.sleep(max(0.0, asked.watch_s - (time.monotonic() - began_s)))

    async def _once(self) -> list[Finding]:
        asked, one = self.asked, _Round([], [])
        agents = await described(asked.addresses, asked.token)
        transports = asked.transports or agents.transports
        paths = len(transports) * len(agents.hosts) * (len(agents.hosts) - 1)
        self._announce(agents, asked.claims.check(agents, transports), paths)
        judge = Judge(asked.claims, agents.hosts, asked.expect)

        def moved(now: Progress) -> None:
            share = min(now.spent_s / now.budget_s, 1.0) if now.budget_s > 0.0 else 0.0
            bar(now.path - 1 + share, now.paths)

        try:
            with progress("probing") as bar:
                await probe(
                    asked.addresses,
                    transports,
                    scope=asked.scope,
                    token=asked.token,
                    device=asked.device,
                    progress=moved,
                    done=lambda measured: self._measured(measured, judge, one),
                )
        except (asyncio.CancelledError, KeyboardInterrupt):
            if one.found:
                say(f"interrupted: {len(one.found)} of {paths} paths were measured")
                await self._leave(one, agents.hosts, whole=False)
            raise
        await self._leave(one, agents.hosts, whole=True)
        return one.found

    def _announce(self, agents: Agents, word: str | None, paths: int) -> None:
        for what in (*agents.silent.values(), *([word] if word else [])):
            if what not in self.told:
                say(what)
        self.told = {*agents.silent.values(), *([word] if word else [])}
        if not self.rounds:
            budget_s = self.asked.scope.budget_s
            say(f"{paths} paths of up to about {about(budget_s)} each: {about(paths * budget_s)} at most")
        self.rounds += 1

    def _measured(self, measured: Measured, judge: Judge, one: "_Round") -> None:
        src, dst = judge.hosts[measured.src_address], judge.hosts[measured.dst_address]
        key = (src.names[0], dst.names[0], measured.transport)
        stored = self.before.get(key)
        former = stored.fitted if stored is not None else self.written.get(key)
        found = judge.found(measured, former, time.time())
        one.found.append(found)
        if found.change is None and self.states.get(_path(found)) == found.state:
            return
        self.states[_path(found)] = found.state
        one.news.append(found)
        if not self.asked.as_json:
            stamp = "" if self.rounds == 1 else f"{time.strftime('%H:%M:%S')} "
            self.said.line(f"{stamp}{found.line}")

    async def _leave(self, one: "_Round", hosts: Mapping[str, Host], *, whole: bool) -> None:
        """What is to stay goes first: what is told may find nobody to read it."""
        asked, kept = self.asked, to_keep(one.found, self.before)
        self.before |= {each.key: each for each in kept}
        gpu = next((host.gpu for host in hosts.values() if host.gpu), "")
        host_memory = bool(gpu) and asked.device == "cpu"
        if host_memory and asked.outputs.redis and self.rounds == 1:
            say(f"routers are not told: host memory was measured where workers have a {gpu}; --device cuda:0")
        await asked.outputs.leave(kept, whole=whole, store=not host_memory)
        if one.news and asked.as_json:
            told = {"paths": [each.told() for each in one.news]}
            self.said.line(json.dumps(told, allow_nan=False))
        elif self.rounds == 1 and one.found:
            self.said.table(paths_table(one.found, self.said.width))
        if whole or self.rounds == 1:  # else the plot of the round before has all paths
            asked.outputs.draw(one.found)


@dataclass(frozen=True, slots=True)
class _Round:
    """`news`: those of `found` that are not as they were in the round before."""

    found: list[Finding]
    news: list[Finding]


def _check(found: Sequence[Finding], expect: str | None, unwritten: Mapping[str, str]) -> None:
    failed = [one for one in found if one.error is not None]
    if failed:
        raise CommandError(
            f"{len(failed)} of {len(found)} paths were not measured to the end: {_named(failed)}"
        )
    missed = [one for one in found if one.expected is False]
    if missed:
        raise CommandError(f"{len(missed)} of {len(found)} paths do not meet {expect}: {_named(missed)}")
    if unwritten:
        raise CommandError(f"what was measured could not be written everywhere: {', '.join(unwritten)}")


def _named(found: Sequence[Finding]) -> str:
    names = [f"{src} to {dst} over {transport}" for src, dst, transport in map(_path, found[:NAMED])]
    more = [f"{len(found) - NAMED} more"] if len(found) > NAMED else []
    return ", ".join([*names, *more])


def _path(one: Finding) -> Key:
    return one.measured.src, one.measured.dst, one.measured.transport


def _complain(field_name: str, what: str) -> None:
    say(f"passing over the probed path {field_name!r} in the store: {what}")
