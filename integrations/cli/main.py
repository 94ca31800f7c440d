"""`kvferry`, also where only what a worker needs is installed: there it knows one command."""

import importlib
import sys

from kvferry.integrations.sglang.plugin import check


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage."""
    try:
        app = importlib.import_module("kvferry.integrations.cli.app")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("kvferry"):
            raise
        sys.exit(_bare(str(error.name), sys.argv[1:]))
    app.main()


def _bare(missing: str, words: list[str]) -> int:
    if words[:2] == ["worker", "check"]:
        return check.main()
    print(
        f"kvferry: {missing} is not installed: pip install kvferry (without it there is "
        "only `kvferry worker check`)",
        file=sys.stderr,
    )
    return 1
