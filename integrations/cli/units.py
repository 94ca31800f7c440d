"""Numbers as people read them; the raw ones are in `--json`."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def human_bytes(count: float) -> str:
    """Bytes in binary units with three digits: 2.00 GiB."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    if unit == 0:
        return f"{value:.0f} B"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {_UNITS[unit]}"


def human_seconds(seconds: float) -> str:
    """Seconds with a unit that fits: 12 us, 3.4 ms, 1.2 s."""
    if abs(seconds) < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if abs(seconds) < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"
