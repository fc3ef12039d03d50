"""Families of statements beside their own, found since: certificates of formats do not try them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mcfsim.symbolic import Family

#: By statement.
FOUND: Mapping[str, tuple[Family, ...]] = MappingProxyType({})
