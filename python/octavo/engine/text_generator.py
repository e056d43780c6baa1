"""Language models that run natively, without torch: texts that grow token by token, from weights that stay packed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from octavo import _core
from octavo.engine.native_folder import native_folder
from octavo.engine.text_borders import borders, stop_texts, until
from octavo.errors import DataError, DTypeError, RangeError, SettingError
from octavo.storage.reading import shown
from octavo.tensors.formats import Format
from octavo.tensors.formats import core as core_format

if TYPE_CHECKING:
    import numpy as np

    from octavo.data.byte_pairs import Special
    from octavo.data.foreign_tokenizer import TextTokenizer
    from octavo.engine.chat_template import ChatTemplate, Message

TOKENS = 128
"""Tokens that are generated where no number is given, if the model has positions for them."""
CHAT_TOKENS = 1024
"""The same for answers of a chat, which end by themselves."""
_PAGE = 64  # positions of a page of the cache
_MOST = 1 << 31  # tokens
_LEAST_SHARE = 2.0**-126


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen.

    ``top_p`` applies to the tokens that ``top_k`` leaves. Source: Holtzman et al. 2020, nucleus sampling.

    Args:
        temperature: divisor of the scores, 0 to 10000; 0 takes the most likely token.
        top_k: number of most likely tokens to draw from; 0 for all.
        top_p: draw from the fewest tokens whose probabilities add up to it, above 0, up to 1.
        seed: of the draws, from 0; the same seed gives the same tokens, on any number of threads.

    Raises:
        SettingError: names the field, its value and what is accepted.

    Example:
        >>> generator = octavo.TextGenerator.load("gpt-small")
        >>> sampling = octavo.Sampling(temperature=5.0, top_k=40, seed=7)
        >>> generator.generate("abc", sampling, tokens=8) == generator.generate("abc", sampling, tokens=8)
        True
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        for name, accepted in (("temperature", "from 0 to 10000"), ("top_p", "above 0, up to 1")):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not _fits(name, value):
                raise SettingError(f"{name} is {shown(value)}; accepted are numbers {accepted}")
        for name in ("top_k", "seed"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value < 2**63:
                raise SettingError(f"{name} is {shown(value)}; accepted are whole numbers from 0")


def _fits(name: str, value: float) -> bool:
    return 0 <= value <= 1e4 if name == "temperature" else 0 < value <= 1


GREEDY = Sampling()


class TextGenerator:
    """A loaded language model of the family of GPT, which runs without torch. Threads may share one.

    Its linear layers multiply the codes of the file; keys and values of earlier tokens are kept in a paged cache.
    Scores of a token depend on the tokens before it alone, neither on the cache, nor on other texts of the call, nor on
    threads. They agree with those of the packed model in PyTorch to about 1e-5 of their size. Source: Radford et al.
    2019, GPT-2; Touvron et al. 2023, Llama.

    Args:
        core: a loaded decoder; :meth:`load` makes one.
        path: its folder.
        tokenizer: its tokenizer; None takes and gives ids alone.
        begin: id that begins a document, for empty prompts.
        ends: ids that end a text.
        cache: format of keys and values; default: float32.

    Raises:
        DTypeError: for another object than a loaded decoder, and a cache that is no format.
        FormatError: for an unknown format.
        SettingError: for a format whose scales belong to more than a head.

    Example:
        >>> generator = octavo.TextGenerator.load("gpt-small")  # a toy model that knows the alphabet
        >>> generator.generate("abc", tokens=5)
        'defgh'
    """

    def __init__(
        self,
        core: _core._Decoder,
        path: Path,
        tokenizer: TextTokenizer | None,
        begin: int | None,
        ends: tuple[int, ...],
        cache: str | Format | None = None,
    ) -> None:
        """Wrap a loaded decoder; :meth:`load` makes one. Raises DTypeError for other objects."""
        if not isinstance(core, _core._Decoder):
            raise DTypeError(f"core is a {type(core).__name__}; use TextGenerator.load")
        self._core, self._path, self._tokenizer, self._begin, self._ends = core, path, tokenizer, begin, ends
        if cache is not None and not isinstance(cache, str | Format):
            raise DTypeError(f"cache is a {type(cache).__name__}; accepted are a Format and its text")
        self._cache = None if cache is None else core_format(str(cache))
        self._core.position_nbytes(self._cache)  # refuses formats that no cache has

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, cache: str | Format | None = None) -> TextGenerator:
        """Load a model folder of Octavo or transformers, or a file or folder of another package.

        It holds ``config.json`` of a GPT of :mod:`octavo.lab.language.gpt`, or of an architecture of transformers that
        the manual's page on generating text lists, the weights, and ``tokenizer.json``, without which the generator
        takes ids alone. The core reads byte-level BPE; any other is read by the package ``tokenizers``. Texts end with
        the end of text of ``config.json`` and ``generation_config.json``. A GGUF file, and a folder that another
        package packed, are read through torch; what is decoded is warned of.

        Args:
            path: the folder or file; ``"minilm"`` and ``"smollm2"`` are models that packages carry.
            cache: format of keys and values, such as ``"fp16"`` or ``"mxint8"``; default: float32.

        Returns:
            The generator.

        Raises:
            DTypeError: for a cache that is no format.
            FormatError: for an unknown format.
            SettingError: for a format whose scales belong to more than a head.
            ContainerError: for another architecture, techniques that only PyTorch runs, simulated layers that are not
                packed, and a folder with the weights of two models; names the file and the field, layer or tensor.
            DataError: for a tokenizer of more ids than the model has, special tokens aside; and for one that neither
                the core nor the package ``tokenizers`` reads.
            OctavoError: for a name whose package is missing.
            OSError: as the system gives it.
        """
        from octavo.data.foreign_tokenizer import load_tokenizer

        with native_folder(path) as folder:
            core = _core._Decoder.load(folder)
            tokenizer = load_tokenizer(folder)
            if tokenizer is not None and (size := _without_special(tokenizer)) > core.vocabulary:
                raise DataError(f"{folder}: a tokenizer of {size} ids; the model has {core.vocabulary}")
            begin, ends = borders(folder, core.vocabulary)
            generator = cls(core, folder, tokenizer, begin, ends, cache)
            generator._rename(Path(path))
        return generator

    @property
    def vocabulary(self) -> int:
        """Number of ids."""
        return self._core.vocabulary

    @property
    def positions(self) -> int | None:
        """Most tokens of a text, the prompt included; None where the architecture has no such bound."""
        return self._core.positions

    @property
    def nbytes(self) -> int:
        """Bytes of weights that are read for each token."""
        return self._core.nbytes

    @property
    def position_nbytes(self) -> int:
        """Bytes of cache for each position: keys and values of all layers, in the format of the cache."""
        return self._core.position_nbytes(self._cache)

    @property
    def tokenizer(self) -> TextTokenizer:
        """Tokenizer of the folder. Raises DataError where there is none."""
        if self._tokenizer is None:
            fix = "generate_ids takes ids"
            if (self._path / "tokenizer.model").exists():
                fix = (
                    "tokenizer.model of SentencePiece becomes one by: import transformers; "
                    f"transformers.AutoTokenizer.from_pretrained({str(self._path)!r})"
                    f".save_pretrained({str(self._path)!r})"
                )
            raise DataError(f"{self._path}: no tokenizer.json, so that texts have no ids; {fix}")
        return self._tokenizer

    def scores(self, ids: Sequence[int]) -> np.ndarray:
        """Return the scores of the token after each id.

        Args:
            ids: one id or more, as many as the model has positions.

        Returns:
            float32, ``[ids, vocabulary]``, not normalized.

        Raises:
            DTypeError: as :meth:`generate_ids`.
            DataError: as :meth:`generate_ids`.
            RangeError: for more ids than positions.
            ContainerError: as :meth:`generate_ids`.

        Example:
            >>> generator = octavo.TextGenerator.load("gpt-small")
            >>> scores = generator.scores(generator.tokenizer.encode("abc").tolist())
            >>> scores.shape, generator.tokenizer.decode(scores.argmax(axis=1))  # the next letter of each
            ((3, 257), 'bcd')
        """
        import numpy as np

        checked = self._checked([ids], None)[0]
        if self.positions is not None and len(checked) > self.positions:
            raise RangeError(f"{len(checked)} ids; the model has {self.positions} positions")
        return np.frombuffer(self._core.scores(checked, self._cache), np.dtype("<f4")).reshape(
            len(checked), self.vocabulary
        )

    def generate_ids(
        self,
        prompts: Iterable[Sequence[int]],
        sampling: Sampling = GREEDY,
        *,
        tokens: int | None = None,
        stop: Sequence[int] | None = None,
        cache: bool = True,
    ) -> Iterator[list[int | None]]:
        """Continue prompts of ids, all at once.

        Args:
            prompts: one id or more each.
            sampling: choice of the next token; default: the most likely. Every prompt has draws of its own.
            tokens: most tokens of each continuation; default: 128, or as many as the model has positions for.
            stop: ids that end a text and are not given, none for ``()``; default: the end of text of ``config.json``
                and ``generation_config.json``.
            cache: False computes every token from all before it, to the same bits.

        Returns:
            An iterator over steps, each the next id of every prompt, None for those that have ended.

        Raises:
            DTypeError: for anything else than lists of ids.
            DataError: for an empty prompt or an id that the model does not have.
            RangeError: where prompt and ``tokens`` pass the model's positions.
            SettingError: for ``tokens`` below 1.
            ContainerError: for weights that give no finite scores.

        Example:
            >>> generator = octavo.TextGenerator.load("gpt-small")
            >>> prompts = [generator.tokenizer.encode(text).tolist() for text in ("abc", "uvw")]
            >>> for step in generator.generate_ids(prompts, tokens=3):
            ...     print(step, [generator.tokenizer.decode([number]) for number in step])
            [67, 87] ['d', 'x']
            [68, 88] ['e', 'y']
            [69, 89] ['f', 'z']
        """
        if not isinstance(sampling, Sampling):
            raise DTypeError(f"sampling is a {type(sampling).__name__}; accepted is an octavo.Sampling")
        if not isinstance(cache, bool):
            raise DTypeError(f"cache is a {type(cache).__name__}; accepted are True and False")
        checked = self._checked(prompts, tokens)
        count = self._count(checked, tokens)
        ends = self._ends if stop is None else self._numbers(stop, "stop")
        pages = sum(-(-(len(prompt) + count) // _PAGE) for prompt in checked)
        return self._continued(self._begun(checked, sampling, pages, cache), len(checked), count, set(ends))

    def _begun(self, prompts: list[list[int]], sampling: Sampling, pages: int, cache: bool) -> _core._Generation:
        # The core has float32, in which smaller shares would be 0; all of them leave the most likely token.
        how = (float(sampling.temperature), sampling.top_k, max(float(sampling.top_p), _LEAST_SHARE), sampling.seed)
        return _core._Generation(self._core, prompts, how, cache, pages, self._cache)

    def _continued(
        self, texts: _core._Generation, live: int, tokens: int, ends: set[int]
    ) -> Iterator[list[int | None]]:
        for _ in range(tokens):
            while texts.feed():
                pass
            following = texts.advance()
            for number, token in enumerate(following):
                if token in ends:
                    following[number] = None
                    live -= 1
                    if live:  # whom its pages serve; the last text may go on, as a conversation does
                        texts.end(number)
            if not live:
                return
            yield following

    def stream(
        self,
        prompt: str,
        sampling: Sampling = GREEDY,
        *,
        tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        special: Special = "refuse",
    ) -> Iterator[str]:
        """Continue a text, piece by piece.

        A prompt gets the tokens that ``tokenizer.json`` puts around a text, as transformers gives it; one that begins
        with them gets no second ones. An empty prompt begins a document. An id that the tokenizer has no token for is
        U+FFFD.

        Args:
            prompt: the text to continue.
            sampling: choice of the next token; default: the most likely.
            tokens: most tokens of the continuation; default: 128, or as many as the model has positions for.
            stop: a text, or several, before the first of which the continuation ends.
            special: reading of special tokens in the prompt, as for :meth:`octavo.data.BytePairTokenizer.encode`.

        Returns:
            An iterator over pieces of whole characters.

        Raises:
            DTypeError: as :meth:`generate_ids`.
            DataError: as :meth:`generate_ids`; and for a folder without a tokenizer.
            RangeError: as :meth:`generate_ids`.
            SettingError: as :meth:`generate_ids`.
            ContainerError: as :meth:`generate_ids`.

        Example:
            >>> list(octavo.TextGenerator.load("gpt-small").stream("abc", tokens=10, stop="gh"))
            ['d', 'e', 'f']
        """
        stops = stop_texts(stop)
        before = self._ids(prompt, special)
        steps = self.generate_ids([before], sampling, tokens=tokens)
        ids = (token for (token,) in steps if token is not None)
        return until(self.tokenizer.decode_stream(ids, after=before, replace=True), stops)

    @overload
    def generate(  # type: ignore[overload-overlap]  # to mypy, a text is a sequence of texts, too
        self,
        prompt: str,
        sampling: Sampling = ...,
        *,
        tokens: int | None = ...,
        stop: str | Sequence[str] | None = ...,
        special: Special = ...,
    ) -> str: ...
    @overload
    def generate(
        self,
        prompt: Sequence[str],
        sampling: Sampling = ...,
        *,
        tokens: int | None = ...,
        stop: str | Sequence[str] | None = ...,
        special: Special = ...,
    ) -> list[str]: ...
    def generate(
        self,
        prompt: str | Sequence[str],
        sampling: Sampling = GREEDY,
        *,
        tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        special: Special = "refuse",
    ) -> str | list[str]:
        """Return the continuation of a prompt, or of several, which are continued together.

        Args:
            prompt: one text, or several.
            sampling: as for :meth:`stream`.
            tokens: as for :meth:`stream`.
            stop: as for :meth:`stream`.
            special: as for :meth:`stream`.

        Returns:
            A text, or one for each prompt.

        Raises:
            DTypeError: as :meth:`generate_ids`.
            DataError: as :meth:`stream`.
            RangeError: as :meth:`generate_ids`.
            SettingError: as :meth:`generate_ids`.
            ContainerError: as :meth:`generate_ids`.

        Example:
            >>> octavo.TextGenerator.load("gpt-small").generate(["abc", "uv"], tokens=4)
            ['defg', 'wxyz']
        """
        if isinstance(prompt, str):
            return "".join(self.stream(prompt, sampling, tokens=tokens, stop=stop, special=special))
        from octavo.data._arguments import listed

        stops = stop_texts(stop)
        prompts = [self._ids(one, special) for one in listed("prompt", prompt, "a text or a list of texts")]
        answers: list[list[int]] = [[] for _ in prompts]
        for following in self.generate_ids(prompts, sampling, tokens=tokens):
            for row, token in zip(answers, following, strict=True):
                row += [] if token is None else [token]
        return [
            "".join(until(self.tokenizer.decode_stream(row, after=before, replace=True), stops))
            for row, before in zip(answers, prompts, strict=True)
        ]

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling = GREEDY,
        *,
        tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Iterator[str]:
        """Answer a conversation, piece by piece.

        The chat template of the folder makes a text of the messages. The answer ends with the end of text that
        ``generation_config.json``, ``config.json`` or the tokenizer's ``eos_token`` names. Special tokens of the answer
        are left out.

        Args:
            messages: what was said, a ``role`` (``system``, ``user`` or ``assistant``) and a ``content`` each.
            sampling: choice of the next token; default: the most likely.
            tokens: most tokens of the answer; default: 1024, or as many as the model has positions for.
            stop: as for :meth:`stream`.
            variables: as for :meth:`chat_ids`.

        Returns:
            An iterator over pieces of whole characters.

        Raises:
            DTypeError: as :meth:`chat_ids`.
            DataError: as :meth:`chat_ids`.
            RangeError: as :meth:`generate_ids`.
            SettingError: as :meth:`generate_ids` and :meth:`chat_ids`.
            ContainerError: as :meth:`generate_ids`.

        Example:
            >>> generator = octavo.TextGenerator.load("gpt-small")
            >>> list(generator.stream_chat([{"role": "user", "content": "abc"}], tokens=3))
            ['d', 'e', 'f']
        """
        stops = stop_texts(stop)
        steps = self.answer_ids(self.chat_ids(messages, variables=variables), sampling, tokens=tokens)
        return until(self.tokenizer.decode_stream(steps, replace=True), stops)

    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling = GREEDY,
        *,
        tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the answer to a conversation.

        Args:
            messages: as for :meth:`stream_chat`.
            sampling: as for :meth:`stream_chat`.
            tokens: as for :meth:`stream_chat`.
            stop: as for :meth:`stream`.
            variables: as for :meth:`chat_ids`.

        Returns:
            The text, without special tokens.

        Raises:
            DTypeError: as :meth:`stream_chat`.
            DataError: as :meth:`stream_chat`.
            RangeError: as :meth:`stream_chat`.
            SettingError: as :meth:`stream_chat`.
            ContainerError: as :meth:`stream_chat`.

        Example:
            >>> generator = octavo.TextGenerator.load("gpt-small")
            >>> generator.chat([{"role": "user", "content": "abc"}], tokens=5)
            'defgh'
        """
        return "".join(self.stream_chat(messages, sampling, tokens=tokens, stop=stop, variables=variables))

    def chat_ids(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the ids of a conversation, as ``apply_chat_template`` of transformers gives them.

        The template says what special tokens stand where; none are added around its text. Special tokens in a message
        are special tokens, as in transformers: check what strangers write.

        Args:
            messages: as for :meth:`stream_chat`.
            add_generation_prompt: end with what an answer begins with.
            variables: further variables of the template, such as ``{"enable_thinking": False}``.

        Returns:
            The ids.

        Raises:
            DTypeError: for other objects than messages and booleans.
            DataError: for no messages, a folder without tokenizer or chat template, and where the template refuses the
                messages, fails, or takes more than 10 seconds or 256 MB.
            SettingError: for variables that are no values of JSON.

        Example:
            >>> generator = octavo.TextGenerator.load("gpt-small")
            >>> ids = generator.chat_ids([{"role": "user", "content": "abc"}])
            >>> generator.tokenizer.decode(ids)
            'abc'
        """
        text = self._template.render(messages, add_generation_prompt=add_generation_prompt, variables=variables)
        ids = self.tokenizer.encode(text, special="allow").tolist()
        if not ids:
            raise DataError(f"{self._path}: the chat template renders no text of the messages")
        return ids

    def answer_ids(
        self, prompt: Sequence[int], sampling: Sampling = GREEDY, *, tokens: int | None = None
    ) -> Iterator[int]:
        """Continue the ids of a conversation to the end of an answer.

        Args:
            prompt: ids of :meth:`chat_ids`.
            sampling: choice of the next token; default: the most likely.
            tokens: as for :meth:`stream_chat`.

        Returns:
            An iterator over ids, without special tokens.

        Raises:
            DTypeError: as :meth:`generate_ids`.
            DataError: as :meth:`generate_ids`.
            RangeError: as :meth:`generate_ids`.
            SettingError: as :meth:`generate_ids`.
            ContainerError: as :meth:`generate_ids`.

        Example:
            >>> generator = octavo.TextGenerator.load("gpt-small")
            >>> ids = generator.chat_ids([{"role": "user", "content": "abc"}])
            >>> generator.tokenizer.decode(list(generator.answer_ids(ids, tokens=3)))
            'def'
        """
        if not isinstance(sampling, Sampling):
            raise DTypeError(f"sampling is a {type(sampling).__name__}; accepted is an octavo.Sampling")
        checked, count = self._prepared(prompt, tokens)
        texts = self._begun([checked], sampling, -(-(len(checked) + count) // _PAGE), True)
        return self._answered(texts, count)

    def _prepared(self, prompt: Sequence[int], tokens: int | None) -> tuple[list[int], int]:
        """Return checked ids of a conversation, and the most tokens of the answer."""
        (checked,) = self._checked([prompt], tokens)
        if tokens is None and self.positions is not None:
            tokens = max(1, min(CHAT_TOKENS, self.positions - len(checked) + 1))
        return checked, self._count([checked], tokens or CHAT_TOKENS)

    def _answered(self, texts: _core._Generation, tokens: int) -> Iterator[int]:
        """Continue the one text of a generation to the end of an answer."""
        special = set(self.tokenizer.special.values())
        steps = self._continued(texts, 1, tokens, set(self._answer_ends))
        return (token for (token,) in steps if token is not None and token not in special)

    def _conversation(self, prompt: list[int], sampling: Sampling) -> _core._Generation:
        """Begin a text that may grow to all positions of the model."""
        return self._begun([prompt], sampling, -(-(self.positions or _MOST) // _PAGE), True)

    def _rename(self, path: Path) -> None:
        """Call the model by a path: of a file, whose folder is temporary, what chats need of the folder is read now."""
        if not path.is_dir():
            with suppress(DataError):  # raised anew by a chat
                self._template.label = f"{path}: chat template"
            if self._tokenizer is not None:
                self._answer_ends  # noqa: B018 # a cached property
        self._path = path

    @cached_property
    def _template(self) -> ChatTemplate:
        from octavo.engine.chat_template import ChatTemplate

        return ChatTemplate.load(self._path)

    @cached_property
    def _answer_ends(self) -> tuple[int, ...]:
        from octavo.engine.chat_template import special_tokens

        end = special_tokens(self._path).get("eos_token")
        number = None if end is None else self.tokenizer.id(end)
        return (*self._ends, *(() if number is None or number >= self.vocabulary else (number,)))

    def _ids(self, prompt: str, special: Special) -> list[int]:
        from octavo.data._arguments import check_text

        check_text("prompt", prompt)
        before, behind = self.tokenizer.around
        ids = self.tokenizer.encode(prompt, special=special).tolist()
        ids = [*(() if ids[: len(before)] == before else before), *ids, *behind]
        if ids:
            return ids
        if self._begin is None:
            raise DataError("prompt is empty, and config.json names no token that begins a text; give a prompt")
        return [self._begin]

    def _checked(self, prompts: Iterable[Sequence[int]], tokens: int | None) -> list[list[int]]:
        from octavo.data._arguments import listed

        if tokens is not None and (type(tokens) is not int or not 1 <= tokens < _MOST):
            raise SettingError(f"tokens is {shown(tokens)}; accepted is a whole number from 1 to {_MOST - 1}")
        checked = []
        for at, prompt in enumerate(listed("prompts", prompts, "a list of lists of ids")):
            checked.append(self._numbers(prompt, f"prompt {at}"))
            if not checked[-1]:
                raise DataError(f"prompt {at} has no ids; accepted is one id or more below {self.vocabulary}")
        return checked

    def _numbers(self, ids: Iterable[int], label: str) -> list[int]:
        """Return ids as whole numbers. Raises DTypeError for what is no list of them, DataError for others."""
        from octavo.data._arguments import listed, whole

        numbers = [whole(f"{label}: id", number) for number in listed(label, ids, "a list of ids")]
        wrong = next((number for number in numbers if number >= self.vocabulary), None)
        if wrong is not None:
            raise DataError(f"{label} has id {wrong}; accepted are ids below {self.vocabulary}")
        return numbers

    def _count(self, prompts: list[list[int]], tokens: int | None) -> int:
        longest, positions = max(map(len, prompts), default=0), self.positions
        # The last token is given and not computed with.
        room = None if positions is None else positions - longest + 1
        if room is not None and room < (1 if tokens is None else tokens):
            fix = f"; generate up to {room}" if room > 0 else "; shorten the prompt"
            raise RangeError(
                f"a prompt of {longest} tokens and {tokens or 1} generated ones pass the model's {positions} "
                f"positions{fix}"
            )
        return tokens or (TOKENS if room is None else min(TOKENS, room))

    def __repr__(self) -> str:
        """Tell the folder and the vocabulary."""
        return f"TextGenerator({str(self._path)!r}, vocabulary={self.vocabulary})"


def _without_special(tokenizer: TextTokenizer) -> int:
    """Return the number of ids without special tokens at the end: of pictures, say, which a model of texts lacks."""
    size, special = tokenizer.size, set(tokenizer.special.values())
    while size - 1 in special:
        size -= 1
    return size
