"""What `kvferry simulate` compares: policies on one cluster, and on others with the same requests."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvferry.integrations.simulate.engine import Failure, Outcome
from kvferry.integrations.simulate.plots import draw, setting_of
from kvferry.integrations.simulate.report import policies_of
from kvferry.models.simulator.cell import Cell

Rows = dict[str, dict[str, Any]]


class Comparison:
    """`rows`: pooled figures by policy; those of other clusters than the first by `policy @cluster`."""

    def __init__(self, cells: Sequence[Cell], outcomes: Mapping[str, Outcome], seed: int) -> None:
        self._cells, self._outcomes, self._first = cells, outcomes, cells[0]
        self._clusters = {cell.cluster.name: cell.cluster for cell in cells}
        self._found = {
            name: policies_of([cell for cell in cells if cell.cluster.name == name], outcomes, seed)
            for name in self._clusters
        }
        self.rows: Rows = {
            self._name(policy, cluster): row
            for cluster, found in self._found.items()
            for policy, row in found.items()
        }

    def told(self, seeds: int) -> dict[str, Any]:
        """For --json: `policies` are those on the first cluster, `against` by cluster those on the others."""
        first, main = self._first, self._first.cluster.name
        others = {name: {"policies": found} for name, found in self._found.items() if name != main}
        return {
            "seed": first.seed,
            "seeds": seeds,
            "workload": first.source.name,
            "cluster": main,
            "rate_rps": first.rate_rps,
            "duration_s": first.duration_s,
            "path_class": first.cluster.path_class,
            "slo": asdict(first.slo),
            "events": [asdict(event) for event in first.events],
            "policies": self._found[main],
            **({"against": others} if others else {}),
        }

    @property
    def title(self) -> str:
        """What was run; with a scan, at which rate the figures beside the goodput were taken."""
        cell, slo = self._first, self._first.slo
        objectives = (
            f"TTFT {slo.ttft_s:g} s + {slo.ttft_s_per_token * 1e3:g} ms/token, ITL {slo.itl_s * 1e3:g} ms"
        )
        where = f"on {', '.join(self._clusters)}: {objectives}"
        if any(cell.scan for cell in self._cells):
            return f"{cell.source.name} {where}; figures beside goodput at {self._rate}"
        return f"{cell.source.name}{f' at {cell.rate_rps:g}/s' if cell.rate_rps else ''} {where}"

    @property
    def _rate(self) -> str:
        if self._first.rate_rps is not None:
            return f"{self._first.rate_rps:g}/s"
        offered = [row["offered_rps"] for row in self.rows.values() if row["offered_rps"]]
        return f"its own rate, {offered[0]:.3g}/s" if offered else "its own rate"

    def draw(self, file: Path, seeds: int) -> None:
        """Write the plot. CommandError when it cannot be written."""
        curves: dict[str, list[Any]] = {}
        timelines: dict[str, Any] = {}
        events: list[tuple[float, str]] = []
        for cell in self._cells:
            outcome, name = self._outcomes[cell.key], self._name(cell.policy, cell.cluster.name)
            if isinstance(outcome, Failure):
                continue
            if cell.scan:
                curves.setdefault(name, []).append(outcome["points"])
            elif name not in timelines:
                timelines[name] = outcome["timeline"]
                events = [(time_s, label) for time_s, label in outcome["events"]]
        attained = {name: row["slo_attainment"] for name, row in self.rows.items()}
        seed, (main, *others) = self._first.seed, self._clusters
        setting = "\n".join(
            (
                setting_of(self._clusters[main], seed, seeds),
                *(f"@{name}: {setting_of(self._clusters[name], seed, seeds)}" for name in others),
            )
        )
        draw(curves, attained, timelines, events, self.title, file, setting)

    def _name(self, policy: str, cluster: str) -> str:
        return policy if cluster == self._first.cluster.name else f"{policy} @{cluster}"
