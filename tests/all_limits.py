"""The limits of all packages by their names: ``all_limits.TOPICS``."""

from types import ModuleType
from typing import Any

from reput import limits
from reput.broker import limits as broker
from reput.controller import limits as controller
from reput.format import limits as format_
from reput.grpc import limits as grpc
from reput.namesrv import limits as namesrv
from reput.remoting import limits as remoting
from reput.spark import limits as spark
from reput.store import limits as store

MODULES = (format_, remoting, store, broker, namesrv, controller, grpc, spark, limits)
"""The modules in the order of the reference page."""


def module_of(name: str) -> ModuleType:
    """Return the module that declares a limit. Raises ``AttributeError``."""
    for module in MODULES:
        if hasattr(module, name):
            return module
    raise AttributeError(f"no package declares the limit {name}")


def __getattr__(name: str) -> Any:
    return getattr(module_of(name), name)
