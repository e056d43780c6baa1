"""Specifications of models by the fields of their configuration class: ours, or one of transformers."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from octavo.errors import SettingError
from octavo.storage.arguments import checks_arguments

# Facts about the library that wrote a configuration, which no model is built from.
_NO_SIZES = ("transformers_version", "_name_or_path", "architectures")


@checks_arguments
def config_spec(config_class: type[Any], **values: Any) -> dict[str, Any]:
    """Return the complete configuration of a class with these fields set, as plain JSON values, with its class's name.

    Raises SettingError for a field that the class does not declare. transformers keeps such a field without a word and
    builds the same model as before: ``num_layers`` of a BERT, which reads ``num_hidden_layers``.
    """
    known = declared_fields(config_class)
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(sorted(known))}"
            raise SettingError(f"{name!r} is no field of {config_class.__name__}, whose models do not read it{hint}")
    config = config_class(**values)
    made = next((getattr(config, name) for name in ("to_dict", "as_dict") if hasattr(config, name)), None)
    if made is None:
        raise SettingError(f"{config_class.__name__} has neither to_dict nor as_dict, which a specification is made of")
    found = {name: value for name, value in made().items() if name not in _NO_SIZES}
    return {"class": config_class.__name__, **found}


def declared_fields(config_class: type[Any]) -> set[str]:
    """Return the fields that a configuration class declares: of a dataclass, of its constructors, or by another name.

    A constructor's ``**kwargs`` declares nothing. Raises SettingError for what is no class.
    """
    if not isinstance(config_class, type):
        raise SettingError(f"{config_class!r} is no configuration class; accepted is one such as BertConfig")
    found: set[str] = set(getattr(config_class, "attribute_map", None) or {})
    if is_dataclass(config_class):
        found |= {item.name for item in fields(config_class) if item.init or item.default is not MISSING}
    for base in config_class.__mro__[:-1]:
        if "__init__" in vars(base):
            parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
            found |= {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        found |= {name for name, item in vars(base).items() if isinstance(item, property) and item.fset is not None}
    return {name for name in found if not name.startswith("_")}
