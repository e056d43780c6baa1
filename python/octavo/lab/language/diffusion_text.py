"""Texts of models that are trained by masked diffusion: sampled through torch, for the native decoder is causal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from octavo.data import BytePairTokenizer
from octavo.lab.language.gpt import GPT
from octavo.lab.language.gpt.diffusion_sampling import continued
from octavo.lab.language.model_folder import load_language_model


@dataclass(frozen=True)
class DiffusionText:
    """A model of masked diffusion and its tokenizer."""

    model: GPT
    tokenizer: BytePairTokenizer

    @classmethod
    def load(cls, folder: Path) -> DiffusionText:
        """Read a folder of ``octavo lab train gpt``. Raises as :func:`load_language_model`."""
        return cls(*load_language_model(folder))

    def continued(
        self, prompts: Sequence[str], *, tokens: int = 64, steps: int = 0, temperature: float = 1.0, seed: int = 0
    ) -> list[str]:
        """Return what follows each prompt: ``tokens`` ids, revealed in ``steps`` steps a block, 0 for one an id.

        The text ends where a new document would begin. Random numbers are of ``seed``.
        """
        generator = torch.Generator().manual_seed(seed)
        end = self.model.config.end_of_text
        found = []
        for text in prompts:
            begin = [] if end is None else [end]
            prompt = torch.tensor([*begin, *self.tokenizer.encode(text).tolist()] or [0])
            whole = continued(self.model, prompt, tokens, steps=steps, temperature=temperature, generator=generator)
            made = whole[len(prompt) :].tolist()
            made = made[: made.index(end)] if end in made else made
            found.append(self.tokenizer.decode(made))
        return found
