"""The configuration of a GPT: sizes, the technique of every part, and the switches of its residual stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from octavo.errors import SettingError
from octavo.lab.language.gpt.attention_mixer import Attention
from octavo.lab.language.gpt.feed_forwards import GeluMLP
from octavo.lab.language.gpt.in_training import InTraining
from octavo.lab.language.gpt.next_token import NextToken
from octavo.lab.language.gpt.softmax_head import Softmax
from octavo.lab.language.gpt.token_table import TokenTable
from octavo.lab.language.techniques import choice, configured, number, technique_of, whole, written_down

_PARTS = ("embedding", "ffn", "head", "objective")


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The residual stream: how blocks read it, write to it, and reach past each other.

    ``norm_embedding``: the stream begins normed. ``gains``: norms have learned factors. ``mixer_scale``: of what a
    mixer writes. ``input_skip``: a block reads ``a x + b x0``, with x0 the first vectors; learned, 1 and 0 at first.
    ``mirror_skip``: block ``L - 1 - i`` adds the output of block i times a learned factor, 0 at first. ``backout``: the
    output of the middle block times a learned factor, 0 at first, is subtracted before the head. ``value_layers``:
    blocks with a table of values for every token. ``initial``: ``torch`` (uniform within ``1 / sqrt(inputs)``) or
    ``zero_output`` (normal of variance 0.33 / inputs; matrices that write to the stream, and an untied head, zero).
    """

    norm_embedding: bool = False
    gains: bool = False
    mixer_scale: float = 1.0
    input_skip: bool = False
    mirror_skip: bool = False
    backout: bool = False
    value_layers: tuple[int, ...] = ()
    initial: str = "torch"

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("norm_embedding", "gains", "input_skip", "mirror_skip", "backout"):
            choice(self, name, (True, False))
        number(self, "mixer_scale", least=1e-6, most=1e6)
        choice(self, "initial", ("torch", "zero_output"))
        if isinstance(self.value_layers, list):
            object.__setattr__(self, "value_layers", tuple(self.value_layers))


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """A causal language model.

    ``vocabulary``: ids. ``width`` of the residual stream. ``pattern``: a letter a block, which ``mixers`` gives its
    mixer: ``pattern="aaaassssssss"`` with ``mixers={"a": Attention(), "s": LagKernel()}`` has attention in the first
    four of twelve blocks. ``ffn``, ``embedding``, ``head``, ``objective``: configurations of techniques.
    ``stream``: switches of the residual stream. ``in_training``: noise of training. ``end_of_text``: the id that
    begins a document; ``keep_documents``: nothing is seen of other documents.

    Raises SettingError with the field, its value and what is accepted.
    """

    vocabulary: int
    width: int = 768
    pattern: str = "a" * 12
    mixers: Any = field(default_factory=lambda: {"a": Attention()})
    ffn: Any = field(default_factory=GeluMLP)
    embedding: Any = field(default_factory=TokenTable)
    head: Any = field(default_factory=Softmax)
    objective: Any = field(default_factory=NextToken)
    stream: Stream = field(default_factory=Stream)
    in_training: InTraining = field(default_factory=InTraining)
    end_of_text: int | None = None
    keep_documents: bool = False

    def __post_init__(self) -> None:
        """Check every field; ``mixers`` becomes a tuple of pairs, so that a configuration can be compared and kept."""
        whole(self, "vocabulary", least=2)
        whole(self, "width", least=2)
        if isinstance(self.mixers, Mapping):
            object.__setattr__(self, "mixers", tuple(sorted(self.mixers.items())))
        letters = dict(self.mixers)
        if not self.pattern or not isinstance(self.pattern, str):
            raise SettingError(f"pattern is {self.pattern!r}; accepted is a letter a block")
        for letter in self.pattern:
            if letter not in letters:
                raise SettingError(f"pattern has {letter!r}; accepted are the mixers' letters, {', '.join(letters)}")
        for letter, mixer in letters.items():
            technique_of("mixer", mixer)
            if letter not in self.pattern:
                raise SettingError(f"mixers has {letter!r}, which is not in the pattern {self.pattern!r}")
        for kind in _PARTS:
            technique_of(kind, getattr(self, kind))
        if not isinstance(self.stream, Stream):
            raise SettingError(f"stream is a {type(self.stream).__name__}; accepted is a Stream")
        if not isinstance(self.in_training, InTraining):
            raise SettingError(f"in_training is a {type(self.in_training).__name__}; accepted is an InTraining")
        if self.in_training.recomputed > self.layers:
            raise SettingError(f"recomputed is {self.in_training.recomputed}; accepted are 0 to {self.layers} blocks")
        for layer in self.stream.value_layers:
            if not isinstance(layer, int) or not 0 <= layer < self.layers:
                raise SettingError(f"value_layers has {layer!r}; accepted are blocks from 0 to {self.layers - 1}")
        choice(self, "keep_documents", (True, False))
        if self.end_of_text is not None:
            whole(self, "end_of_text", least=0, most=self.vocabulary - 1)
        elif self.keep_documents:
            raise SettingError("keep_documents is True and end_of_text is None; give the id that begins a document")

    @property
    def layers(self) -> int:
        """Blocks."""
        return len(self.pattern)

    def with_training(self, **noise: Any) -> GPTConfig:
        """Return the same with other fields of :class:`InTraining`."""
        return replace(self, in_training=replace(self.in_training, **noise))

    def mixer(self, layer: int) -> Any:
        """Return the configuration of the mixer of a block."""
        return dict(self.mixers)[self.pattern[layer]]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; techniques by name."""
        values = {
            name: getattr(self, name) for name in ("vocabulary", "width", "pattern", "end_of_text", "keep_documents")
        }
        values["mixers"] = {letter: written_down("mixer", mixer) for letter, mixer in self.mixers}
        values |= {kind: written_down(kind, getattr(self, kind)) for kind in _PARTS}
        values["in_training"] = asdict(self.in_training)
        return values | {"stream": {**asdict(self.stream), "value_layers": list(self.stream.value_layers)}}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> GPTConfig:
        """Build a configuration from :meth:`as_dict`.

        Raises SettingError for unknown and missing names and fields, and for values of other types.
        """
        try:
            return cls._from_dict(given)
        except (TypeError, AttributeError, ValueError) as error:
            if isinstance(error, SettingError):
                raise
            raise SettingError(f"a GPT has fields of other types: {error}") from None

    @classmethod
    def _from_dict(cls, given: Mapping[str, Any]) -> GPTConfig:
        _known(given, cls, "a GPT")
        if "vocabulary" not in given:
            raise SettingError("vocabulary is missing; a GPT needs the number of its ids")
        values = dict(given)
        for kind in _PARTS:
            if kind in values:
                values[kind] = configured(kind, values[kind])
        if "mixers" in values:
            values["mixers"] = {letter: configured("mixer", mixer) for letter, mixer in values["mixers"].items()}
        if "stream" in values:
            _known(values["stream"], Stream, "the stream")
            values["stream"] = Stream(**values["stream"])
        if "in_training" in values:
            _known(values["in_training"], InTraining, "in_training")
            values["in_training"] = InTraining(**values["in_training"])
        return cls(**values)


def _known(given: Mapping[str, Any], of: type, owner: str) -> None:
    known = [one.name for one in fields(of)]
    if unknown := sorted(given.keys() - set(known)):
        raise SettingError(f"{unknown[0]} is no field of {owner}; accepted: {', '.join(known)}")
