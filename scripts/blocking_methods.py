"""Show methods that are made from functions as functions, in the generated API reference.

``send = waiting(producer.Producer.send)`` of ``reput.client.blocking`` and
``topics = topic_verbs.topics`` of ``Admin`` are attributes for a parser of sources. This extension
of griffe gives each of them the signature and the text of its function.
"""

import re
from typing import Any

import griffe

WRAPPED = re.compile(r"^(?:waiting|in_loop)\(([\w.]+)\)$")
PLAIN = re.compile(r"^(\w+_verbs\.\w+)$")
MODULES = ("client.blocking", "client.admin")


class BlockingMethods(griffe.Extension):
    """Replaces such attributes by functions, once the package is loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Replace the attributes of the clients."""
        if pkg.path != "reput":
            return
        for path in MODULES:
            module = pkg[path]
            for cls in module.classes.values():
                if not cls.is_alias:
                    for name, attribute in list(cls.attributes.items()):
                        function = _function_of(module, attribute)
                        if function is not None:
                            cls.set_member(name, _method(name, attribute, function))


def _function_of(module: griffe.Module, attribute: griffe.Attribute) -> griffe.Function | None:
    """Return the function that an attribute is made from; None if there is none."""
    value = str(attribute.value)
    match = WRAPPED.match(value) or PLAIN.match(value)
    if match is None:
        return None
    target = module[match[1].split(".")[0]]
    for part in match[1].split(".")[1:]:
        if target.is_alias:
            target = target.final_target
        target = target.all_members[part]
    while not target.is_function:  # a blocking Admin wraps an attribute of Admin
        owner = target.parent.module
        reached = _function_of(owner, target)
        if reached is None:
            return None
        target = reached
    return target.final_target if target.is_alias else target


def _method(name: str, attribute: griffe.Attribute, function: griffe.Function) -> griffe.Function:
    """Return a copy of a function as a method."""
    method = griffe.Function(
        name,
        lineno=attribute.lineno,
        endlineno=attribute.endlineno,
        parameters=function.parameters,
        returns=function.returns,
        docstring=function.docstring,
        parent=attribute.parent,
    )
    if PLAIN.match(str(attribute.value)):
        method.labels = set(function.labels)
    return method
