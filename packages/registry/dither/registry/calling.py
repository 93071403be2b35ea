"""The hooks of one plugin: whether they can be called, and how one is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pluggy

from .hookspecs import CHECK, Hooks
from .problems import nearest
from .spec import Misfit, misfits_of

__all__ = ["call", "require_hooks"]


def require_hooks(manager: pluggy.PluginManager, plugin: Any) -> None:
    """Look at what is marked in a plugin.

    Raises:
        ValueError: Nothing is, or it is no hook, or a wrapper around the hooks of other plugins.
    """
    known = {hook for hook in vars(Hooks) if not hook.startswith("_")}
    marked = {name: manager.parse_hookimpl_opts(plugin, name) for name in dir(plugin)}
    hooks = {name: options for name, options in marked.items() if options is not None}
    for name, options in hooks.items():
        if (options.get("specname") or name) not in known:
            close = nearest(name, known)
            raise ValueError(f'"{name}" is no hook' + (f', did you mean "{close}"?' if close else ""))
        if options.get("wrapper") or options.get("hookwrapper"):
            raise ValueError(f'"{name}" is a wrapper: each hook is called by itself, so there is nothing to wrap')
    if not hooks:
        raise ValueError("no function is marked with @hookimpl")


def call(impl: pluggy.HookImpl, hook: str, arguments: Mapping[str, Any]) -> Any:
    """Call a hook of one plugin with the arguments it asks for; misfits are listed, for whoever yields them may raise.

    Raises:
        TypeError: It is to yield misfits, and does not; or whatever it raises.
    """
    result: Any = impl.function(*(arguments[argument] for argument in impl.argnames))
    if hook != CHECK:
        return result
    misfits: list[Misfit] = misfits_of(result)
    return misfits
