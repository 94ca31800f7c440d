"""Built-in scenarios, for where there is no trace."""

from kvferry.models.workload.arrivals import Arrivals
from kvferry.models.workload.lengths import Lognormal, Mixture, Uniform
from kvferry.models.workload.scenario import Phase, Scenario, Stream
from kvferry.models.workload.session import Session

CHAT = Session(
    opening=Lognormal(600, 1.0, 16, 16_000),
    follow=Lognormal(120, 0.9, 4, 8_000),
    output=Lognormal(250, 0.8, 4, 2_000),
    turns=Lognormal(3, 0.8, 1, 20),
    wait_s=Lognormal(20, 0.8, 2, 180),
    system_tokens=1024,
    limit_tokens=32_768,
)
AGENT = Session(
    opening=Lognormal(4_000, 0.7, 500, 30_000),
    follow=Lognormal(500, 1.2, 20, 12_000),
    output=Mixture((Lognormal(90, 0.6, 8, 600), Lognormal(700, 0.6, 100, 4_000)), (0.85, 0.15)),
    turns=Lognormal(14, 0.6, 3, 60),
    wait_s=Lognormal(1.5, 0.9, 0.1, 30),
    system_tokens=6_144,
    system_prompts=3,
    limit_tokens=131_072,
)
DOCUMENT = Session(opening=Lognormal(12_000, 0.8, 2_000, 100_000), output=Lognormal(300, 0.7, 16, 2_000))
REASONING = Session(opening=Lognormal(300, 1.0, 16, 8_000), output=Lognormal(1_300, 0.9, 64, 16_000))
SHORT = Session(opening=Lognormal(1_000, 0.9, 16, 14_000), output=Lognormal(130, 0.8, 4, 1_000))

BUILT_IN: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "steady", (Stream("even", Session(Uniform(500, 1_500), output=Uniform(100, 300)), rate_rps=8.0),)
        ),
        Scenario("bursty", (Stream("short", SHORT, 8.0, Arrivals("gamma", cv=3.0, on_s=6.0, off_s=6.0)),)),
        Scenario("conversation", (Stream("chat", CHAT, 8.0, Arrivals("gamma", cv=1.5)),)),
        Scenario("agentic", (Stream("agent", AGENT, 4.0),)),
        Scenario("reasoning", (Stream("reasoning", REASONING, 4.0, Arrivals("weibull", cv=1.5)),)),
        Scenario("mixed", (Stream("short", SHORT, 6.0), Stream("document", DOCUMENT, 1.0))),
        Scenario(
            "shift",
            (
                Stream("chat", CHAT, 6.0, Arrivals("gamma", cv=1.5)),
                Stream("document", DOCUMENT, 2.0),
                Stream("reasoning", REASONING, 4.0),
            ),
            (Phase(1, (1.0, 0.1, 0.1)), Phase(1, (0.2, 1.0, 0.1)), Phase(1, (0.3, 0.1, 1.0))),
            duration_s=900.0,
        ),
    )
}
