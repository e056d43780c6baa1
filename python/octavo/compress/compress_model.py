"""octavo.compress_model chooses a format for each layer so that a model fits a budget, and reports what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from torch import nn

from octavo.compress.changed_examples import changed_examples
from octavo.compress.compression_facts import report_of
from octavo.compress.compression_flow import Flow
from octavo.compress.compression_job import FORMATS, DataFacts, Job, Quality, check_budget, pruned
from octavo.compress.compression_options import Goal, Options, canonical, with_lookups
from octavo.compress.compression_trials import Evidence
from octavo.compress.trial_bench import Bench, Tell
from octavo.compress.work_plan import WorkPlan
from octavo.data.batches import Batches, call_numbered, samples_of
from octavo.display.progress import Report
from octavo.errors import ConfigError
from octavo.model_folder.model_card import add_measured
from octavo.model_folder.save_load import file_bytes, fill_folder
from octavo.model_folder.weight_files import PACKED_NAME
from octavo.nn.meta_tensors import refuse_meta
from octavo.nn.model_copies import shared_copy
from octavo.nn.rewriting import made_of_layers
from octavo.nn.tied_weights import untie_heads
from octavo.quant.calibration import undisturbed
from octavo.recipe import Recipe
from octavo.report.compression_report import write_report
from octavo.report.value_texts import summary_lines
from octavo.search.fingerprints import identity_of, warn_of_unknown
from octavo.search.journal import Journal
from octavo.search.number_arrays import returned_number
from octavo.search.peers import Peer
from octavo.search.short_training import BatchTask, Loss, Training, distillation, rate_of, short_config
from octavo.storage import files, folders
from octavo.storage.arguments import checks_arguments
from octavo.storage.process_memory import give_back
from octavo.train.measurement import Measurement, mean_of
from octavo.train.model_agreement import agreement
from octavo.train.unpadded_samples import parted, unpadded

RECIPE, JSON, HTML = "recipe.toml", "report.json", "report.html"
_HELD = 3  # of so many samples one measures agreement
#: What is measured where nobody says what is right.
AGREEMENT = "agreement with the original model: no labels were given"


@dataclass(frozen=True)
class Compressed:
    """The result of :func:`compress_model`.

    Attributes:
        model: the packed model.
        recipe: the format of each layer.
        report: plain data of ``report.json``.
        found: everything that was measured.
        job: the model and data of the call.
    """

    model: nn.Module = field(repr=False)
    recipe: Recipe
    report: dict[str, Any] = field(repr=False)
    found: Evidence = field(repr=False)
    job: Job = field(repr=False)

    def __str__(self) -> str:
        """Return the verdict, and every value before and after."""
        return "\n".join(summary_lines(self.report))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    @checks_arguments
    def save(self, folder: Path | str, *, overwrite: bool = False) -> Path:
        """Write the model folder with ``recipe.toml``, ``report.html`` and ``report.json``, whole or not at all.

        Args:
            folder: folder to write.
            overwrite: replace those files of a folder that is there.

        Returns:
            The path of the folder.

        Raises:
            FileExistsError: for a folder that is there, with ``overwrite=False``.
            ModelError: as :func:`octavo.save_model`.
            ContainerError: as :func:`octavo.save_model`.
            OSError: as the system gives it.
        """
        target = Path(folder)
        with folders.whole(target, owned={PACKED_NAME, RECIPE, JSON, HTML}, overwrite=overwrite) as stage:
            self.job.write(self.model, stage)
            write_evidence(stage, self.recipe, self.report)
        return target


@checks_arguments
def compress_model(
    model: nn.Module,
    budget: float | None = None,
    *,
    data: Iterable[Any],
    evaluate: Callable[[nn.Module], Any] | None = None,
    test: Callable[[nn.Module], Any] | None = None,
    nbytes: int | None = None,
    max_loss: float | None = None,
    latency: float | None = None,
    latency_batch: int = 1,
    formats: Sequence[str] = FORMATS,
    recipe: Any = None,
    fast: bool = False,
    sensitivity: str = "auto",
    share: Sequence[str] = (),
    exclude: Sequence[str] = (),
    tokenizer: Any = None,
    samples: int = 128,
    train: bool | Loss = False,
    train_steps: int | None = None,
    workers: int = 1,
    peers: Sequence[Peer] = (),
    journal: Path | str | None = None,
    untie: bool = False,
    progress: bool | Report = True,
) -> Compressed:
    """Return ``model`` packed within a budget: a format for every layer, chosen by its cost to this model.

    Give one of ``budget``, ``nbytes`` and ``max_loss``; ``latency`` beside one of them or alone. ``model`` is never
    written: a copy of its modules, over the memory of its parameters, is measured, and other threads may call ``model``
    meanwhile. The order of layers and formats, formats that never help, and test data change nothing.

    With a journal, the model, ``data``, ``evaluate`` and the loss are known by content: weights, buffers, attributes,
    code, closures, and the globals and files that the code names. An IdentityWarning names a part that cannot be read,
    such as a generator; then nothing is answered from before.

    Args:
        model: a float model.
        budget: bits for each parameter of the model in the file of weights, its header included; default: 4.5.
        data: calibration batches, as :func:`octavo.quantize_model` takes them.
        evaluate: function of a model that returns its quality, a result of :func:`octavo.evaluate` or a number of which
            more is better. It chooses, so give it validation data. Default: agreement with ``model`` on a part of
            ``data`` that nothing is calibrated on.
        test: like ``evaluate``, on data of its own; called twice, at the end.
        nbytes: most bytes of the file of weights. The file is never larger, nor than ``budget`` allows.
        max_loss: largest loss of quality; 0.01 of an accuracy is a point; of a KL or the logarithm of a perplexity,
            nats.
        latency: seconds that a call may take on this machine.
        latency_batch: samples of that call.
        formats: candidates. ``nf4@gptq`` is measured as GPTQ makes it, which takes longer and chooses better.
        recipe: a Recipe, its text or file; nothing is searched then, and without a goal none is judged.
        fast: one backward pass instead of one layer after the other, and no points beside the chosen one.
        sensitivity: ``divergence``, one layer in one format at a time; ``fisher``, an estimate from one backward pass;
            or ``auto``, the first unless it takes too long.
        share: selectors of layers that get one format together.
        exclude: selectors of layers that stay float.
        tokenizer: of transformers, for ``data`` of texts.
        samples: most samples of ``data``.
        train: train the best model through its formats: a function of model and batch that returns the loss, a tensor
            of one value; True for the divergence from ``model``, which needs no labels.
        train_steps: updates of that training, each on one calibration batch; default: a short run.
        workers: processes that measure, forks of this one with a thread each, to the same result.
        peers: formats of other libraries (:func:`octavo.search.peer_formats.peers`), evaluated at the same bytes.
        journal: a folder; the same call goes on where it was stopped, whatever ended it.
        untie: first give a head that has the table of the embedding a weight of its own, with a format of its own. The
            report tells the bytes that it costs.
        progress: a function of stage, done and total; True and False show nothing.

    Returns:
        The packed model, its recipe, and the report.

    Raises:
        ConfigError: for goals that contradict each other or that no format reaches, before work starts.
        FormatError: for formats and recipes, before work starts.
        CalibrationError: for data that the model cannot take; names batch, argument and layer.
        ModelError: for tensors on the meta device; with ``untie`` where nothing is tied.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).eval()
        >>> batches = [torch.randn(16, 64) for _ in range(3)]
        >>> result = octavo.compress_model(model, 6, data=batches, formats=["mxint8", "mxint4"], fast=True)
        >>> [str(layer.format) for layer in (result.model[0], result.model[2])]  # result.recipe says it as a recipe
        ['mxint4', 'mxint8']
        >>> folder = result.save("small")  # with recipe.toml, report.html and report.json
    """
    refuse_meta(model, "compress_model")
    options = Options(
        goal=Goal.of(budget, nbytes, max_loss, latency, latency_batch, searched=recipe is None),
        formats=tuple(formats),
        recipe=None if recipe is None else Recipe.of(recipe),
        fast=fast,
        sensitivity=sensitivity,
        share=tuple(share),
        exclude=tuple(exclude),
        train=bool(train),
        train_steps=train_steps,
        workers=workers,
        peers=tuple(peers),
        journal=None if journal is None else Path(journal),
    )
    loss = train if callable(train) else None
    job = job_of(
        model, data, evaluate=evaluate, test=test, tokenizer=tokenizer, samples=samples, loss=loss, untie=untie
    )
    return run_job(job, options, tell=_teller(progress))


def job_of(
    model: nn.Module,
    data: Any,
    *,
    evaluate: Callable[[nn.Module], Any] | None = None,
    test: Callable[[nn.Module], Any] | None = None,
    tokenizer: Any = None,
    samples: int = 128,
    loss: Loss | None = None,
    name: str | None = None,
    untie: bool = False,
) -> Job:
    """Return the job of :func:`compress_model`'s arguments. Raises CalibrationError for data that holds nothing."""
    model = shared_copy(model)
    untied = untie_heads(model) if untie else None
    given = Batches(data, samples, tokenizer=tokenizer)
    batches, held = parted(model, given, _HELD) if evaluate is None else (list(unpadded(model, given)), [])
    quality = _as_quality(evaluate) if evaluate is not None else _agreeing(model, Batches(held))
    # A function of the user's sees which layers are in training; the agreement is measured in evaluation.
    known = None if evaluate is None else identity_of(model=model, data=[batches, held], evaluate=evaluate)
    with undisturbed(model):
        known = known or identity_of(model=model, data=[batches, held], evaluate="agreement")
        call_numbered(model, batches[0], 0)
    return Job(
        name=name or type(model).__name__,
        model=model,
        batches=Batches(batches),
        evaluate=quality,
        test=None if test is None else _as_quality(test),
        measures="the quality that was given" if evaluate else AGREEMENT,
        write=write_model,
        identity={**known.digests},
        unknown=known.unknown,
        sized=file_bytes,
        unseen=None if evaluate is None else batches,
        unseen_source="the calibration data: no other was given",
        training=lambda steps: _training(model, batches, loss, steps),
        untied=untied,
        data=_facts(batches, held, evaluate is not None, test is not None),
        samples=samples,
    )


def run_job(job: Job, options: Options, *, tell: Tell, command: str | None = None) -> Compressed:
    """Return the result of a job. ``tell`` hears what is done, and the share of it. ``command``: for the report.

    Raises as :func:`compress_model`.
    """
    job = replace(job, model=made_of_layers(job.model))
    if options.prune is not None:
        job = pruned(job, options.prune)
    job = replace(job, notes=(*job.notes, *options.notes))
    formats = canonical(job.formats) if options.formats is None else with_lookups(options.formats, job.model)
    if options.train and job.training is None:
        raise ConfigError(f"{job.name}: there is nothing to train it on; leave the training out")
    training = job.training(options.train_steps) if options.train and job.training is not None else None
    sizes = None
    if options.recipe is None:
        sizes = check_budget(job, options, formats)
    else:
        options.recipe.plan(job.model)
    with ExitStack() as stack:
        if options.journal is not None:
            warn_of_unknown((*job.unknown, *(() if training is None else training.unknown)))
        folder = stack.enter_context(folders.scratch()) if options.journal is None else options.journal
        folder.mkdir(parents=True, exist_ok=True)
        journal = stack.enter_context(Journal(folder))
        tell = _giving_back(tell)
        bench = Bench(job, options.goal, journal, tell, options.workers)
        evidence = Flow(bench, options, formats, sizes, training).run()
        tell("packing the chosen model", bench.plan.share("packing"))
        packed = bench.built(evidence.chosen)
        size, tested, changed = _final(job, packed, tell, bench.plan, stack)
        tell("writing the report", 1.0)
        report = report_of(
            job, options.goal, evidence, packed, file_bytes=size, tested=tested, changed=changed, command=command
        )  # fmt: skip
    return Compressed(packed, evidence.chosen.recipe, report, evidence, job)


def _giving_back(tell: Tell) -> Tell:
    """Return ``tell``, which gives freed memory back to the system whenever something else begins."""
    last = ""

    def told(text: str, share: float) -> None:
        nonlocal last
        if text != last:
            last = text
            give_back()
        tell(text, share)

    return told


def _final(
    job: Job, packed: nn.Module, tell: Tell, plan: WorkPlan, stack: ExitStack
) -> tuple[int, tuple[Measurement, Measurement] | None, dict[str, Any] | None]:
    """Write the model once to know its file, and open the test data, once, for the float and the packed model.

    Returns the bytes of the file, what both models reached, and examples whose answer changed, for the report.
    """
    folder = stack.enter_context(folders.scratch())
    size = job.write(packed, folder).stat().st_size
    if job.test is None:
        return size, None, None
    tell("testing the float model", plan.share("test"))
    before = job.test(job.model)
    tell("testing the packed model", plan.share("test", 0.5))
    read = packed if job.read is None else job.read(folder)
    tested = before, job.test(read)
    return size, tested, None if job.examples is None else changed_examples(job.examples, job.model, read, *tested)


def write_model(model: nn.Module, folder: Path) -> Path:
    """Write what ``octavo.save_model`` writes into a folder that is there; return the file of the weights."""
    fill_folder(model, folder)
    return folder / PACKED_NAME


def write_evidence(folder: Path, recipe: Recipe, report: dict[str, Any]) -> None:
    """Write ``recipe.toml``, ``report.html`` and ``report.json`` into a folder that is there."""
    files.write(folder / RECIPE, recipe.to_toml())
    verdict, *values = summary_lines(report)
    add_measured(folder, [verdict.partition(": ")[2], *values])  # without the model's path on this machine
    write_report(folder, report)


def _agreeing(model: nn.Module, batches: Batches) -> Quality:
    return lambda other: agreement(other, model, batches)


def _as_quality(evaluate: Callable[[nn.Module], Any]) -> Quality:
    def quality(model: nn.Module) -> Measurement:
        found = evaluate(model)
        if isinstance(found, Measurement):
            return found
        number = returned_number(
            found, "evaluate", "a number of which more is better, and what octavo.evaluate returns"
        )
        return mean_of("quality", [number], "max", "one number of a function")

    return quality


def _training(model: nn.Module, batches: list[Any], loss: Loss | None, steps: int | None) -> Training:
    config = short_config(steps, learning_rate=rate_of(model), device="cuda" if _is_on_cuda(model) else "cpu")
    if loss is None:
        told = "divergence from the original model"
    else:
        told = f"the loss {getattr(loss, '__name__', type(loss).__name__)}"
    known = identity_of(loss="distillation" if loss is None else loss, data=batches)
    task = BatchTask(batches, distillation(model) if loss is None else loss)
    return Training(task, config, told, {**known.digests}, known.unknown)


def _is_on_cuda(model: nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in model.parameters())


def _facts(batches: list[Any], held: list[Any], labelled: bool, tested: bool) -> list[DataFacts]:
    facts = [DataFacts("calibration", "samples that were given", sum(map(samples_of, batches)))]
    if held is batches:
        return [*facts, DataFacts("validation", "the sample that calibrates: one was given; give two or more")]
    facts.append(
        DataFacts("validation", "the function evaluate")
        if labelled
        else DataFacts("validation", "other samples that were given", sum(map(samples_of, held)))
    )
    return facts + ([DataFacts("test", "the function test")] if tested else [])


def _teller(progress: bool | Report) -> Tell:
    if callable(progress):
        return lambda text, share: progress(text, round(1000 * share), 1000)
    return lambda text, share: None
