"""`kvferry probe run`: measure, judge, tell, and do so again."""

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from kvferry.integrations.cli.errors import CommandError
from kvferry.integrations.cli.probe_claims import Claims
from kvferry.integrations.cli.probe_findings import Finding, Judge, Key, to_keep
from kvferry.integrations.cli.probe_former import in_file, in_store, tell, write
from kvferry.integrations.cli.probe_hosts import Host, described
from kvferry.integrations.cli.probe_plot import draw
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
    redis: str | None
    namespace: str
    toml: Path | None
    plot: Path | None
    watch_s: float | None
    as_json: bool


@dataclass(slots=True)
class Runs:
    """One probe after the other, each held against the ones before."""

    asked: Asked
    before: dict[Key, Probed] = field(default_factory=dict)
    written: dict[Key, Fit] = field(default_factory=dict)
    states: dict[Key, tuple[object, ...]] = field(default_factory=dict)

    async def all(self) -> None:
        """CommandError when a path has no figures, or does not meet what was expected."""
        asked = self.asked
        self.written = in_file(asked.toml) if asked.toml else {}
        if asked.redis:
            self.before = await in_store(asked.redis, asked.namespace, _complain)
        while True:
            began_s = time.monotonic()
            found = await self._once()
            if asked.watch_s is None:
                return _check(found, asked.expect)
            await asyncio.sleep(max(0.0, asked.watch_s - (time.monotonic() - began_s)))

    async def _once(self) -> list[Finding]:
        asked = self.asked
        hosts = await described(asked.addresses, asked.token)
        with progress("probing") as bar:

            def moved(now: Progress) -> None:
                share = min(now.spent_s / now.budget_s, 1.0) if now.budget_s > 0.0 else 0.0
                bar(now.path - 1 + share, now.paths)

            measured = await probe(
                asked.addresses,
                asked.transports,
                scope=asked.scope,
                token=asked.token,
                device=asked.device,
                progress=moved,
            )
        found = self._judged(measured, Judge(asked.claims, hosts, asked.expect))
        self._show(found)
        await self._leave(found, hosts)
        if asked.plot is not None:
            draw(found, asked.plot)  # last: what was measured is not lost for want of matplotlib
        return found

    def _judged(self, measured: Sequence[Measured], judge: Judge) -> list[Finding]:
        found, now_s = [], time.time()
        for one in measured:
            src, dst = judge.hosts[one.src_address], judge.hosts[one.dst_address]
            key = (src.names[0], dst.names[0], one.transport)
            stored = self.before.get(key)
            former = stored.fitted if stored is not None else self.written.get(key)
            found.append(judge.found(one, former, now_s))
        return found

    def _show(self, found: Sequence[Finding]) -> None:
        news = [one for one in found if one.change or self.states.get(_path(one)) != one.state]
        first, self.states = not self.states, {_path(one): one.state for one in found}
        if not news:
            return
        if self.asked.as_json:
            print(json.dumps({"paths": [one.told() for one in news]}, allow_nan=False), flush=True)
            return
        console = Console(highlight=False)
        stamp = "" if first else f"{time.strftime('%H:%M:%S')} "
        for one in news:
            console.print(f"{stamp}{one.line}", soft_wrap=True, markup=False)
        if first:
            console.print(paths_table(found))

    async def _leave(self, found: Sequence[Finding], hosts: Mapping[str, Host]) -> None:
        asked, kept = self.asked, to_keep(found, self.before)
        self.before |= {one.key: one for one in kept}
        if asked.toml is not None and kept:
            write(asked.toml, kept, asked.claims.links)
        if asked.redis is None:
            return
        if asked.device == "cpu" and (gpu := next((one.gpu for one in hosts.values() if one.gpu), "")):
            _say(
                f"routers are not told: host memory was measured where workers have a {gpu}; --device cuda:0"
            )
            return
        await tell(asked.redis, asked.namespace, kept)


def _check(found: Sequence[Finding], expect: str | None) -> None:
    failed = [one for one in found if one.error is not None]
    if failed:
        raise CommandError(
            f"{len(failed)} of {len(found)} paths were not measured to the end: {_named(failed)}"
        )
    missed = [one for one in found if one.expected is False]
    if missed:
        raise CommandError(f"{len(missed)} of {len(found)} paths do not meet {expect}: {_named(missed)}")


def _named(found: Sequence[Finding]) -> str:
    names = [f"{src} to {dst} over {transport}" for src, dst, transport in map(_path, found[:NAMED])]
    more = [f"{len(found) - NAMED} more"] if len(found) > NAMED else []
    return ", ".join([*names, *more])


def _path(one: Finding) -> Key:
    return one.measured.src, one.measured.dst, one.measured.transport


def _complain(field_name: str, what: str) -> None:
    _say(f"passing over the probed path {field_name!r} in the store: {what}")


def _say(what: str) -> None:
    print(f"kvferry: {what}", file=sys.stderr)
