"""What a compression works on, handed down as plain functions, and the bytes that its models take."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from octavo.compress.compression_options import Options
from octavo.compress.file_sizes import FileSizes
from octavo.data.batches import Batches
from octavo.errors import ConfigError, ModelError
from octavo.model_folder.stored_tensors import stored_state
from octavo.nn import QuantLayer
from octavo.nn.model_copies import deep_copy
from octavo.nn.tied_weights import Untied
from octavo.prune import fold_model, prune_model
from octavo.quant.algorithms.bias import add_to_bias, correct_bias_model
from octavo.quant.apply_recipe import quantized_beside
from octavo.quant.pack_layers import pack_model
from octavo.recipe import Recipe
from octavo.recipe.sites import model_sites
from octavo.search.fingerprints import identity_of
from octavo.search.kept_solutions import KeptSolutions
from octavo.search.layer_groups import candidates, matching
from octavo.search.short_training import Training
from octavo.storage import folders
from octavo.train.measurement import Measurement

#: Candidates of the search where none are given, from 8 bits to 2, scales included.
FORMATS = ("mxint8", "int6:g64", "int5:g64", "nf4/32", "nf4", "nf3/32", "nf3", "int2:g32")

Quality = Callable[[nn.Module], Measurement]


@dataclass(frozen=True)
class DataFacts:
    """Where the examples of one split come from, for the report. ``digest``: SHA-256, where it is known."""

    split: str
    source: str
    count: int | None = None
    digest: str | None = None


@dataclass(frozen=True)
class Examples:
    """Test examples as people read them, in the order of the values that ``Job.test`` measures.

    ``texts``: what a model is asked. ``answers``: a model's answers to the examples at some places; None: the measured
    value stands for the answer. ``expected``: the right answers; None where there are none.
    """

    texts: Sequence[str]
    answers: Callable[[nn.Module, Sequence[int]], Sequence[str]] | None = None
    expected: Sequence[str] | None = None


@dataclass(frozen=True)
class Job:
    """A model to compress, and everything that depends on what it is for.

    ``model``: float; it is not changed. ``batches``: calibration data. ``evaluate``: the quality of a packed model, or
    of the float one, on validation data: it chooses. ``test``: the same on data that nothing was chosen by, called for
    the float model and for the final one alone; None where there is none. ``examples``: those of ``test``, of which
    the report shows some whose answer changed. ``measures``: what the quality is, for people. ``write``: writes a
    packed model into a folder that is there and empty, and returns the file with its weights. ``read``: reads the model
    of such a folder, which is then tested; None: the model that was written is.
    ``sized``: the bytes of that file, without writing it; None: it is written to know them.
    ``identity``: plain values that tell this model, data and evaluation from others, for the journal; ``unknown``: what
    of them has no identity, as :class:`octavo.search.fingerprints.Identity` says it. ``file_bytes``: of the float
    model's file.
    ``output``, ``divergence``: what sensitivities compare, and how (:func:`octavo.search.measure_sensitivity`).
    ``unseen``: batches that nothing is calibrated on, on which the divergence of a packed model is measured beside its
    quality; None: the quality is that divergence. ``unseen_source``: what they are, for people.
    ``untied``: heads of ``model`` that shared the table of the embedding before.
    ``half_vectors``: ``write`` stores vectors in two bytes a value. ``costs``: rows of the report, of the float and the
    packed model, peak memory and latencies among them; None: those of forward passes.
    ``formats``: candidates of every layer, where nobody names others.
    ``training``: makes a short training of so many updates, or of as many as the system takes; None: nothing to train.
    """

    name: str
    model: nn.Module
    batches: Batches
    evaluate: Quality
    measures: str
    write: Callable[[nn.Module, Path], Path]
    identity: dict[str, Any]
    read: Callable[[Path], nn.Module] | None = None
    test: Quality | None = None
    examples: Examples | None = None
    task: str = ""
    file_bytes: int | None = None
    data: Sequence[DataFacts] = ()
    notes: tuple[str, ...] = ()
    samples: int = 128
    half_vectors: bool = False
    output: Callable[[Any, Any], Tensor] | None = None
    divergence: str | None = None
    costs: Callable[[nn.Module, nn.Module], list[dict[str, Any]]] | None = None
    training: Callable[[int | None], Training] | None = None
    formats: tuple[str, ...] = FORMATS
    unknown: tuple[str, ...] = ()
    sized: Callable[[nn.Module], int] | None = None
    untied: Untied | None = None
    unseen: Sequence[Any] | None = None
    unseen_source: str = ""

    def size(self, model: nn.Module) -> int:
        """Return the bytes of the file of weights that ``write`` makes of a model, header included."""
        if self.sized is not None:
            return self.sized(model)
        with folders.scratch() as folder:
            return self.write(model, folder).stat().st_size

    def tensor_bytes(self, model: nn.Module) -> int:
        """Return the bytes of a model's tensors as ``write`` stores them: those of the file without its header."""
        vectors = [parameter for parameter in self.model.parameters() if parameter.ndim < 2]
        return stored_bytes(model) - sum(vector.nbytes // 2 for vector in vectors if self.half_vectors)

    def quantized(
        self,
        recipe: Recipe,
        batches: Batches,
        *,
        corrected: bool = False,
        to_train: bool = False,
        store: KeptSolutions | None = None,
    ) -> nn.Module:
        """Return the quantized model of a recipe, calibrated on batches.

        ``corrected``: with biases corrected for what layers lose. ``to_train``: its weights are its own; else those of
        the float model, which must not be written. ``store``: what was solved before, which gets what is solved now.
        """
        model = quantized_beside(self.model, recipe, calibration=batches, samples=self.samples, store=store)
        if to_train:
            model = deep_copy(model)
        if corrected and (added := None if store is None else store.biases()) is not None:
            for name, delta in added.items():
                add_to_bias(model.get_submodule(name), delta)
        elif corrected:
            corrections = correct_bias_model(model, self.model, batches, samples=self.samples, progress=False)
            if store is not None:
                store.add_biases(corrections.added)
        return model

    def build(self, recipe: Recipe) -> nn.Module:
        """Return the packed model of a recipe."""
        return packed_model(self.quantized(recipe, self.batches))


def pruned(job: Job, share: float) -> Job:
    """Return a job whose model has a share of its weights set to 0, by magnitude, in every prunable layer."""
    model = fold_model(prune_model(copy.deepcopy(job.model), share))
    note = f"{100 * share:g}% of the weights were set to 0 first, by magnitude; 'before' is the pruned model"
    digests = identity_of(pruned=model).digests
    return replace(job, model=model, identity={**job.identity, **digests}, notes=(*job.notes, note))


def packed_model(quantized: nn.Module) -> nn.Module:
    """Return a quantized model packed, in place; one whose every layer stays as it is."""
    rounded = any(isinstance(layer, QuantLayer) for layer in quantized.modules())
    return pack_model(quantized, inplace=True) if rounded else quantized


def stored_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's tensors as a file holds them: packed ones as codes and scales, tied ones once."""
    values, _ = stored_state(model)
    return sum(int(value.nbytes) for value in values.values())


def check_budget(job: Job, options: Options, formats: Sequence[str]) -> FileSizes:
    """Refuse a budget below the smallest file or of the whole model, by shapes, and a latency of no forward pass.

    Returns the sizes of the files that a search may write. Raises ConfigError, ModelError for a model without
    parameters or layers, CalibrationError for a batch that it cannot take.
    """
    goal = options.goal
    if goal.latency is not None and job.costs is not None:
        raise ConfigError(
            f"{job.name}: it runs in the native engine, not as forward passes of layers, whose latency a goal may "
            "bound; give bits, bytes or a loss"
        )
    parameters = sum(parameter.numel() for parameter in job.model.parameters())
    if not parameters:
        raise ModelError(f"{job.name} has no parameters: there is nothing to compress")
    whole, most = job.size(job.model), goal.most_bytes(parameters)
    if whole <= most < math.inf and goal.latency is None:
        raise ConfigError(
            f"{job.name} fits {goal.limit:g} {goal.unit} as it is: its file takes {8 * whole / parameters:.2f} bits a "
            f"parameter, {whole:,} bytes, and nothing is to be compressed; give less"
        )
    if whole > most and _is_excluded(job.model, options.exclude):
        raise ConfigError(
            f"no format fits {goal.limit:g} {goal.unit}: every layer is excluded, and the file takes "
            f"{8 * whole / parameters:.2f} bits a parameter, {whole:,} bytes; give more, or exclude less"
        )
    sizes = FileSizes(
        job.model, next(iter(job.batches)), formats, size=job.size, tensors=job.tensor_bytes, share=options.share,
        exclude=options.exclude,
    )  # fmt: skip
    choice = sizes.least()
    least = sizes.exact(choice) if most < math.inf else 0
    if least > most:
        tensors = sizes.tensor_bytes(choice)
        raise ConfigError(
            f"no format fits {goal.limit:g} {goal.unit}: the smallest file in {', '.join(formats)} and float takes "
            f"{8 * least / parameters:.2f} bits a parameter, {least:,} bytes, {least - tensors:,} of them the header; "
            "give more, or smaller formats"
        )
    return sizes


def _is_excluded(model: nn.Module, exclude: Sequence[str]) -> bool:
    """Whether selectors of ``exclude`` leave no layer to choose a format for. Raises ModelError for one of nothing."""
    sites = candidates(model, model_sites(model))
    stays = {path for text in exclude for path in matching(sites, text, "exclude")}
    return bool(sites) and all(site.module in stays for site in sites)
