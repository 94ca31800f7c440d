"""Routers that share a store learn together, and each tells how its learning goes."""

import asyncio
import json
from typing import Any

import pytest

from kvferry.integrations.cli.app import app
from kvferry.integrations.cli.errors import run
from kvferry.integrations.sglang.poller import Target
from kvferry.integrations.sglang.serving import running
from kvferry.integrations.sglang.settings import Settings

TEXT = {"text": "hello " * 50, "stream": True, "sampling_params": {"max_new_tokens": 900}}
WHO = {"x-kvferry-tenant": "acme"}


async def test_what_one_router_learned_the_other_expects(pair: Any, route: Any, eventually: Any) -> None:
    workers = await pair(colocated=0)
    one, two = [await route(*workers.all, name=name) for name in ("sharing-one", "sharing-two")]
    lessons = two.ferry.fleet.lessons
    for _ in range(6):
        await one.post(body=TEXT, headers=WHO)
    told = one.record((await one.post(body=TEXT, headers=WHO)).headers).request
    await eventually(lambda: lessons.lengths.answers(told.model, told.tenant) > 5.0)
    heard = two.record((await two.post(body=TEXT, headers=WHO)).headers).request
    assert (heard.tenant, heard.family) == (told.tenant, told.family)
    assert heard.expected_output_tokens == pytest.approx(told.expected_output_tokens, rel=0.2)
    assert heard.expected_output_tokens < 128.0


async def test_a_restarted_router_goes_on_with_what_it_knew(
    pair: Any, route: Any, store_url: str, eventually: Any
) -> None:
    workers = await pair(colocated=0)
    targets = tuple(Target(worker.url) for worker in workers.all)
    settings = Settings(targets=targets, port=0, redis=store_url, no_log_file=True, name="restarting")
    other = await route(*workers.all)
    model = other.ferry.fleet.models()[0]
    async with running(settings) as (ferry, _):
        for _ in range(5):
            ferry.fleet.lessons.lengths.observe(model, 10.0)
    async with running(settings) as (ferry, _):
        await eventually(lambda: ferry.fleet.lessons.lengths.answers(model) == pytest.approx(4.9, abs=0.1))


async def test_every_router_tells_how_its_learning_goes(
    pair: Any, route: Any, eventually: Any, capsys: pytest.CaptureFixture[str], store: Any
) -> None:
    workers = await pair(colocated=1)
    router = await route(*workers.all, name="told-of")
    for _ in range(3):
        await router.post(body=TEXT)

    async def there() -> bool:
        data = await store.client.get(store.keys.learning("told-of"))
        return data is not None and json.loads(data)["ended"] == 3

    await eventually(there)
    snapshot = router.ferry.learning.snapshot
    assert (snapshot.router, snapshot.policy, snapshot.version) == ("told-of", "kvferry", "structured")
    assert snapshot.decided == 3
    assert sum(term.samples for name, term in snapshot.terms.items() if name.startswith("ttft/")) == 3
    assert snapshot.evidence["output_tokens"] == 3
    assert snapshot.features["log_prompt_tokens"].arrived == 3
    metrics = await (await router.session.get(f"{router.url}/metrics")).text()
    assert "\nkvferry_learning_samples{" in metrics
    assert '\nkvferry_learning_state{check="requests"} 0.0' in metrics
    command = ["models", "health", "--redis", router.store_url, "--json"]
    assert await asyncio.to_thread(run, app, command) in (0, 1)  # routers of earlier tests tell, too
    told = {one["router"]: one for one in json.loads(capsys.readouterr().out)["routers"]}
    assert told["told-of"]["ended"] == 3
