"""Send prompts of 16 to 4,000 random tokens to a router (or worker), and say what became of them.

python benchmarks/send_prompts.py http://127.0.0.1:30000 --requests 400 --rate 2
"""

import argparse
import asyncio
import sys

from prediction_parts.traffic import Traffic

from kvferry.integrations.learning.progress import progress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rate", type=float, default=2.0, help="mean of Poisson arrivals, requests/s")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    traffic = Traffic(given.rate, given.seed)
    with progress("sending") as report:
        results = asyncio.run(
            traffic.send(given.url, given.requests, lambda done: report(done, given.requests))
        )
    told = ", ".join(f"{count} {result}" for result, count in results.most_common())
    print(f"answered: {told}")
    sys.exit(set(results) != {"200"})


if __name__ == "__main__":
    main()
