"""The table of scaled formats for the documentation."""

from __future__ import annotations

from collections.abc import Iterable

from mcfsim.scaled.formats import SCALED, ScaledFormat


def scaled_table(formats: Iterable[ScaledFormat] | None = None) -> list[dict[str, str]]:
    """Return one row of text a scaled format.

    Parameters
    ----------
    formats : iterable of ScaledFormat, optional
        Default: all of `SCALED`.
    """
    return [
        {
            "format": item.name,
            "element": item.element.name,
            "block": "tensor" if item.block is None else str(item.block),
            "scale": item.scale.name,
            "tensor scale": item.tensor_scale.name if item.tensor_scale else "none",
            "rule": str(item.rule),
            "bits an element": f"{float(item.bits_per_element):g}",
            "dequantised": str(item.carrier),
        }
        for item in (SCALED.values() if formats is None else formats)
    ]
