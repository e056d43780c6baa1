"""The network: embedding, blocks of a mixer and a feed-forward network on a residual stream, and a head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from octavo.errors import DTypeError, ModelError, RangeError, ShapeError
from octavo.lab.language.gpt.gpt_config import GPTConfig
from octavo.lab.language.gpt.in_training import PLAIN, BlockDraw, drawn
from octavo.lab.language.gpt.mixing_context import MixingContext, documents
from octavo.lab.language.gpt.next_token import Batch
from octavo.lab.language.gpt.parameter_start import initialize
from octavo.lab.language.gpt.residual_norm import residual_dropout_norm
from octavo.lab.language.gpt.softmax_head import rows
from octavo.lab.language.gpt.token_table import unfilled_table
from octavo.lab.language.techniques import technique_of

EPS = 1e-6

Mix = Callable[[int, MixingContext, Tensor], Tensor]
Replaced = tuple[Tensor, Tensor]


class Norm(nn.Module):
    """Division by the root mean square of the last axis, with learned factors if asked for."""

    def __init__(self, width: int, gains: bool) -> None:
        """Make the factors."""
        super().__init__()
        self.width = width
        self.gain = nn.Parameter(torch.empty(width)) if gains else None
        self.rules = {"gain": "one"}

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed vectors, of the dtype given."""
        return functional.rms_norm(x, (self.width,), self.gain_of(x), EPS)

    def gain_of(self, x: Tensor) -> Tensor | None:
        """Return the factors in the dtype of ``x``."""
        return self.gain if self.gain is None or self.gain.dtype == x.dtype else self.gain.to(x.dtype)


class Block(nn.Module):
    """A mixer and a feed-forward network, each reading the normed stream and adding to it."""

    def __init__(self, config: GPTConfig, mixer: Any) -> None:
        """Make both; ``mixer``: its configuration."""
        super().__init__()
        self.scale = config.stream.mixer_scale
        self.dropout, self.fused = config.in_training.dropout, config.in_training.fused
        self.mixer_norm = Norm(config.width, config.stream.gains)
        self.mixer = technique_of("mixer", mixer).build(mixer, config.width)
        self.ffn_norm = Norm(config.width, config.stream.gains)
        self.ffn = technique_of("ffn", config.ffn).build(config.ffn, config.width)
        if config.keep_documents and not self.mixer.keeps_documents:
            raise ModelError(f"keep_documents is True, but {type(mixer).__name__} mixes across documents")

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return the stream after the block."""
        return self.through(
            x_BTD, lambda normed: self.mixer(normed, context), lambda normed: self.feed(normed, context)
        )

    def feed(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return what the feed-forward network makes of normed vectors; one that reads the context is told it."""
        return self.ffn(x_BTD, context) if getattr(self.ffn, "reads_context", False) else self.ffn(x_BTD)

    def through(
        self,
        x_BTD: Tensor,
        mix: Callable[[Tensor], Tensor],
        feed: Callable[[Tensor], Tensor],
        factor: float | Tensor = 1.0,
    ) -> Tensor:
        """Return the stream after the block; ``mix`` and ``feed`` stand for its two parts: of a whole, or of a step.

        ``factor``: of what the block writes, besides its own scale.
        """
        mixed_BTD = mix(self.mixer_norm(x_BTD))
        if self.fused and self.training:
            gain = self.ffn_norm.gain_of(x_BTD)
            x_BTD, normed_BTD = residual_dropout_norm(
                x_BTD, mixed_BTD, gain, scale=factor * self.scale, p=self.dropout, eps=EPS
            )
        else:
            x_BTD = self._added(x_BTD, mixed_BTD, factor * self.scale)
            normed_BTD = self.ffn_norm(x_BTD)
        return self._added(x_BTD, feed(normed_BTD), factor)

    def _added(self, x_BTD: Tensor, branch_BTD: Tensor, factor: float | Tensor) -> Tensor:
        """Return the sum, with drop-out of what is added."""
        if self.dropout and self.training:
            branch_BTD = functional.dropout(branch_BTD, self.dropout)
        return x_BTD + (branch_BTD if isinstance(factor, float) and factor == 1.0 else factor * branch_BTD)


class GPT(nn.Module):
    """The model of a :class:`GPTConfig`; weights from torch's global generator, float32.

    ``model(ids)`` gives logarithms of probabilities; ``model(ids, targets)`` the loss that is trained on.
    """

    octavo_kind = "gpt"

    def __init__(self, config: GPTConfig) -> None:
        """Build every part and fill its parameters. Raises SettingError or ModelError for parts that do not fit."""
        super().__init__()
        self.config = config
        stream, width, vocabulary = config.stream, config.width, config.vocabulary

        def make(kind: str, *sizes: Any) -> Any:
            part = getattr(config, kind)
            return technique_of(kind, part).build(part, *sizes)

        self.embedding = make("embedding", vocabulary, width, rows(config.head, vocabulary))
        self.embedding_norm = Norm(width, stream.gains) if stream.norm_embedding else None
        self.blocks = nn.ModuleList([Block(config, config.mixer(layer)) for layer in range(config.layers)])
        for store in self.stores:
            store.narrow(vocabulary)
        self.values = nn.ModuleDict()
        for layer in stream.value_layers:
            mixer: Any = self.blocks[layer].mixer
            if not mixer.takes_values:
                raise ModelError(f"value_layers has {layer}, but its {type(mixer.config).__name__} takes no values")
            mixer.admit_values()
            self.values[str(layer)] = unfilled_table(vocabulary, width)
        self.rules = {f"values.{layer}.weight": "zero" for layer in stream.value_layers}
        if stream.input_skip:
            self.stream_factor = nn.Parameter(torch.empty(config.layers))
            self.input_factor = nn.Parameter(torch.empty(config.layers))
            self.rules |= {"stream_factor": "one", "input_factor": "zero"}
        if stream.mirror_skip:
            self.mirror_factor = nn.Parameter(torch.empty(config.layers // 2))
            self.rules["mirror_factor"] = "zero"
        if stream.backout:
            self.backout_factor = nn.Parameter(torch.empty(()))
            self.rules["backout_factor"] = "zero"
        self.final_norm = Norm(width, stream.gains)
        self.head = make("head", vocabulary, width)
        self.head.tie(self.embedding)
        self.objective = make("objective", config)
        self.noise = 1.0  # times the rates of blocks and positions that are left out, as a stage of training sets it
        if config.in_training.positions_passed_over:
            for layer in range(1, config.layers - 1):
                if not getattr(self.blocks[layer].mixer, "reads_positions", False):
                    raise ModelError(
                        f"positions_passed_over is {config.in_training.positions_passed_over}, but "
                        f"{type(config.mixer(layer)).__name__} takes positions to follow each other"
                    )
        initialize(self, stream.initial)
        # A tuple: these modules are members elsewhere already.
        self._routed: tuple[Any, ...] = tuple(part for part in self.blocks.modules() if hasattr(part, "end_pass"))

    def example_inputs(self) -> dict[str, Tensor]:
        """Return ids that are 0, to capture the model with."""
        from octavo.graph.example_inputs import example_ids  # graph loads torch.export

        return {"ids_BT": example_ids(self)}

    def forward(self, ids_BT: Tensor, targets_BT: Tensor | None = None, *, window: int | None = None) -> Any:
        """Return log-probabilities ``[B, T, V]`` float32, or with targets the objective's sum and its parts.

        ``ids_BT``: int64. ``targets_BT``: the next tokens; -1 is not scored. ``window``: positions that mixers may see
        at most, as in a stage of training. Raises DTypeError, ShapeError or RangeError for ids that are none.
        """
        if targets_BT is not None:
            check_ids(ids_BT, self.config.vocabulary)
            if targets_BT.shape != ids_BT.shape:
                raise ShapeError(f"targets have shape {tuple(targets_BT.shape)}; accepted is {tuple(ids_BT.shape)}")
            for part in self._trained_routes():
                part.begin_pass()
            total, parts = self.objective.loss(self, Batch(ids_BT, targets_BT, window))
            return self._with_auxiliary(total, parts)
        return self.log_probs(ids_BT, window=window)

    def log_probs(self, ids_BT: Tensor, *, window: int | None = None) -> Tensor:
        """Return log-probabilities of the next token, ``[B, T, V]`` float32, normalized by the head."""
        hidden_BTD = self.hidden(ids_BT, window=window)
        return self.head.log_probs(hidden_BTD.flatten(0, 1)).unflatten(0, tuple(ids_BT.shape))

    def nll(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the exact loss of every target, ``[B, T]`` float32, without the objective."""
        hidden_BTD = self.hidden(ids_BT)
        return self.head.nll(hidden_BTD.flatten(0, 1), targets_BT.flatten()).view(targets_BT.shape)

    def hidden(self, ids_BT: Tensor, *, window: int | None = None, replaced: Replaced | None = None) -> Tensor:
        """Return the normed hidden states that the head reads, ``[B, T, D]``."""
        return self.final_norm(self.trunk(ids_BT, window=window, replaced=replaced)[0])

    def trunk(
        self, ids_BT: Tensor, *, window: int | None = None, replaced: Replaced | None = None
    ) -> tuple[Tensor, MixingContext]:
        """Return the stream after the last block, before its norm, and the context it was mixed in.

        ``replaced``: positions, bool ``[B, T]``, and the vector ``[D]`` that stands there for that of the embedding.
        """
        check_ids(ids_BT, self.config.vocabulary)
        told = documents(ids_BT, self.config.end_of_text) if self.config.keep_documents else None  # type: ignore[arg-type]
        positions_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        context = MixingContext(positions_T, told, window, ids_BT=ids_BT, embed=self.embedding)
        x_BTD = self.embedding(ids_BT, told)
        if replaced is not None:
            x_BTD = torch.where(replaced[0][..., None], replaced[1].to(x_BTD.dtype), x_BTD)
        return self._through_blocks(x_BTD, ids_BT, context, self._mixed, self._fed), context

    @property
    def counts(self) -> bool:
        """Whether parts count or store training ids."""
        return bool(self.stores or self._counting)

    @property
    def _counting(self) -> list[Any]:
        own = (self.embedding, self.head, self.objective)
        return [part for part in own if callable(getattr(part, "count", None))]

    @property
    def stores(self) -> list[Any]:
        """The stores of text that mixers search."""
        found = [getattr(block.mixer, "store", None) for block in self.blocks]
        return [store for store in found if store is not None]

    def count(self, stream: Tensor) -> None:
        """Let every part that does so count, or store, the ids of a training stream."""
        for part in self._counting:
            part.count(stream)
        for store in self.stores:
            store.fill(stream, self.config.end_of_text)

    def _mixed(self, layer: int, context: MixingContext, normed_BTD: Tensor) -> Tensor:
        mixer: Any = self.blocks[layer].mixer
        return mixer(normed_BTD, context)

    def _fed(self, layer: int, context: MixingContext, normed_BTD: Tensor) -> Tensor:
        block: Any = self.blocks[layer]
        fed_BTD: Tensor = block.feed(normed_BTD, context)
        return fed_BTD

    def _trained_routes(self) -> tuple[Any, ...]:
        """Return the parts whose routing has a loss of its own; none where nothing is trained."""
        return self._routed if self.training and torch.is_grad_enabled() else ()

    def _with_auxiliary(self, total: Tensor, parts: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the objective's sum with the losses of routing, which are a token's, times its tokens."""
        losses = [part.end_pass() for part in self._trained_routes()]
        found = [loss for loss in losses if loss is not None]
        if not found:
            return total, parts
        more = torch.stack(found).sum() * parts["tokens"]
        return total + more, {**parts, "routing": more.detach()}

    def _through_blocks(self, x_BTD: Tensor, ids_BT: Tensor, context: MixingContext, mix: Mix, feed: Mix) -> Tensor:
        """Return the stream after the last block; ``mix`` and ``feed`` stand for the two parts of every block."""
        stream, layers = self.config.stream, self.config.layers
        if self.embedding_norm is not None:
            x_BTD = self.embedding_norm(x_BTD)
        if self.training and self.config.in_training.autocast_stream:
            x_BTD = _as_autocast(x_BTD)
        layer_of = partial(self._layer, (mix, feed), ids_BT, context, x_BTD)
        if self.training and self.config.in_training.layer_drop * self.noise > 0:
            outputs = self._dropping(x_BTD, layer_of)
        else:
            draws, outputs = self._draws(x_BTD) if self.training else [PLAIN] * layers, [x_BTD]
            for layer, draw in enumerate(draws):
                outputs.append(layer_of(layer, draw, outputs[-1], self._mirrored(layer, outputs)))
        x_BTD = outputs[-1]
        if stream.backout:
            x_BTD = x_BTD - self.backout_factor * outputs[(layers + 1) // 2]
        return x_BTD

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
    def _dropping(self, x_BTD: Tensor, layer_of: Callable[..., Tensor]) -> list[Tensor]:
        """Return the stream before the first block and after each, of which some are left out.

        Compiled code breaks here: one graph a block in place of one a combination of blocks, so that those that are
        left out cost nothing.
        """
        outputs = [x_BTD]
        for layer, draw in enumerate(self._draws(x_BTD)):
            outputs.append(layer_of(layer, draw, outputs[-1], self._mirrored(layer, outputs)))
        return outputs

    def _draws(self, x_BTD: Tensor) -> list[BlockDraw]:
        return drawn(self.config.in_training, self.config.layers, x_BTD.shape[1], self.noise, x_BTD.device)

    def _mirrored(self, layer: int, outputs: list[Tensor]) -> Tensor | None:
        """Return the output of the block that a block of the second half mirrors; None for the first half."""
        mirror = self.config.layers - 1 - layer
        return outputs[mirror + 1] if self.config.stream.mirror_skip and mirror < layer else None

    def _layer(
        self,
        parts: tuple[Mix, Mix],
        ids_BT: Tensor,
        context: MixingContext,
        first_BTD: Tensor,
        layer: int,
        draw: BlockDraw,
        x_BTD: Tensor,
        mirrored_BTD: Tensor | None,
    ) -> Tensor:
        """Return the stream after a block and the skips before it."""
        if self.config.stream.input_skip:
            x_BTD = self.stream_factor[layer] * x_BTD + self.input_factor[layer] * first_BTD
        if mirrored_BTD is not None:
            x_BTD = x_BTD + self.mirror_factor[self.config.layers - 1 - layer] * mirrored_BTD
        if str(layer) in self.values:
            context = context.with_values(self.values[str(layer)](ids_BT))
        return self._block(layer, x_BTD, context, parts, draw)

    def _block(
        self, layer: int, x_BTD: Tensor, context: MixingContext, parts: tuple[Mix, Mix], draw: BlockDraw
    ) -> Tensor:
        """Return the stream after a block, which may be left out, see a part of the positions, or keep nothing."""
        if draw.factor == 0.0:
            return x_BTD
        seen_BKD = x_BTD
        if draw.positions_K is not None:
            context, seen_BKD = context.at(draw.positions_K), x_BTD[:, draw.positions_K]
        block: Any = self.blocks[layer]
        mix, feed = (partial(part, layer, context) for part in parts)
        through = partial(block.through, mix=mix, feed=feed, factor=draw.factor)
        if layer < self.config.in_training.recomputed and torch.is_grad_enabled() and self.training:
            seen_BKD = checkpoint(through, seen_BKD, use_reentrant=False)
        else:
            seen_BKD = through(seen_BKD)
        return seen_BKD if draw.positions_K is None else x_BTD.index_copy(1, draw.positions_K, seen_BKD)


def _as_autocast(x: Tensor) -> Tensor:
    """Return ``x`` as autocast, where it is on, would give it to a product: float64 stays."""
    device = x.device.type
    if x.dtype != torch.float32 or x.is_meta or not torch.is_autocast_enabled(device):  # meta has no autocast to ask
        return x
    return x.to(torch.get_autocast_dtype(device))


def check_ids(ids_BT: Tensor, vocabulary: int) -> None:
    """Refuse what are no ids ``[B, T]``. Their range is checked on the CPU alone: a GPU would have to wait for it."""
    if ids_BT.dtype not in (torch.int64, torch.int32):
        raise DTypeError(f"ids have dtype {ids_BT.dtype}; accepted are int64 and int32")
    if ids_BT.ndim != 2 or not ids_BT.numel():
        raise ShapeError(f"ids have shape {tuple(ids_BT.shape)}; accepted is [batch, tokens] with one token or more")
    if ids_BT.device.type == "cpu" and not torch.compiler.is_compiling():
        least, most = ids_BT.aminmax()
        if least < 0 or most >= vocabulary:
            wrong = int(least if least < 0 else most)
            raise RangeError(f"id {wrong} is outside the vocabulary; accepted are 0 to {vocabulary - 1}")
