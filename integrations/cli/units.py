"""Numbers as people read them; the raw ones are in `--json`."""


def human_bytes(count: float) -> str:
    """Bytes in binary units with three digits: 2.00 GiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return (
                f"{value:.0f} B"
                if unit == "B"
                else f"{value:.3g} {unit}"
                if value >= 1000
                else f"{value:#.3g} {unit}"
            )
        value /= 1024
    raise AssertionError("unreachable")


def human_seconds(seconds: float) -> str:
    """Seconds with a unit that fits: 12 us, 3.4 ms, 1.2 s."""
    if abs(seconds) < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if abs(seconds) < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"
