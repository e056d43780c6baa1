"""The process that the study of memory starts: loads a saved model, answers, prints its memory."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

import octavo
from octavo.data.batches import call_on
from octavo.lab.classifiers import Classifier, ClassifierConfig
from octavo.lab.polynomials.seq2seq import Seq2SeqConfig
from octavo.lab.polynomials.seq2seq import build as build_seq2seq
from octavo.lab.studies.probe_batches import ANSWERS, INPUTS, batches, flat, highest
from octavo.storage.process_memory import forget_peak, peak, resident
from octavo.tensors import container


def main(folder: Path, blueprint: dict[str, Any]) -> dict[str, int]:
    """Load ``folder/model``, answer ``folder/inputs.safetensors``, and return resident bytes at three moments."""
    stored = cast("dict[str, Tensor]", container.load(folder / INPUTS))
    given = batches({name: tensor.clone() for name, tensor in stored.items()})
    factory = maker(blueprint)
    rehearse(blueprint, folder / "rehearsal", given[0])
    gc.collect()
    forget_peak()
    told = {"imports": resident()}
    model = octavo.load_model(folder / "model", factory)
    gc.collect()
    told["loaded"] = resident()
    with torch.inference_mode():
        found = torch.cat([highest(call_on(model, batch)) for batch in given])
    told["peak"] = peak()
    container.save({"classes": found}, folder / ANSWERS)
    return told


def maker(blueprint: dict[str, Any]) -> Callable[[], nn.Module] | None:
    """Return a function that makes a model without its weights; None where the folder itself says how."""
    match blueprint["kind"]:
        case "tiny":
            config = ClassifierConfig.from_dict(blueprint["config"])
            return lambda: Classifier(config)
        case "polynomials":
            shape = Seq2SeqConfig(**blueprint["config"])
            return lambda: build_seq2seq(shape)
    return None


def rehearse(blueprint: dict[str, Any], folder: Path, batch: Any) -> None:
    """Save, load and call a model of one small layer, so that all that Python loads on first use is there.

    That is 150 MB and more, which would else be taken for the model's.
    """
    match blueprint["kind"]:
        case "tiny":
            config = ClassifierConfig(vocabulary=2, width=8, layers=1, feed_forward=8, positions=512)
            small: nn.Module = Classifier(config)
        case "polynomials":
            small = build_seq2seq(Seq2SeqConfig(**blueprint["config"]))
        case _:
            import transformers

            shape = transformers.BertConfig(
                vocab_size=2, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
            )
            small = transformers.BertForSequenceClassification(shape)
    packed = octavo.pack_model(octavo.quantize_model(small.eval(), "mxint8", progress=False))
    octavo.save_model(packed, folder)
    ones = {key: torch.ones_like(item) for key, item in flat([batch]).items()}
    with torch.inference_mode():
        call_on(octavo.load_model(folder, lambda: small.__class__(small.config)), batches(ones)[0])


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]))))
