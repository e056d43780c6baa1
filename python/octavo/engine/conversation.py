"""A conversation with a language model: its turns, answers that come piece by piece, and the room that is left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from octavo import _core
from octavo.engine.text_generator import CHAT_TOKENS, GREEDY, Sampling, TextGenerator
from octavo.errors import DTypeError, OctavoError, RangeError, SettingError
from octavo.storage.reading import shown


class Conversation:
    """The turns of one user and one model. Not for several threads at once.

    A turn that was interrupted stays, with the part of the answer that was said. Where the model has no positions for
    all turns and an answer, the oldest ones are dropped; the system message stays. Keys and values of what was said are
    kept in the cache: a question costs the tokens that are new, as far as the conversation begins as before.

    Args:
        generator: the model, with a chat template.
        system: the system message, if there is one.
        sampling: choice of the next token; default: the most likely.
        tokens: most tokens of an answer; default: 1024, or as many as the model has positions for.
        variables: further variables of the template.

    Raises:
        DTypeError: for another object than a generator, and another one than a sampling.
        SettingError: for ``tokens`` below 1.
    """

    def __init__(
        self,
        generator: TextGenerator,
        system: str | None = None,
        sampling: Sampling = GREEDY,
        *,
        tokens: int | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin without turns."""
        if not isinstance(generator, TextGenerator):
            raise DTypeError(f"generator is a {type(generator).__name__}; accepted is an octavo.TextGenerator")
        if not isinstance(sampling, Sampling):
            raise DTypeError(f"sampling is a {type(sampling).__name__}; accepted is an octavo.Sampling")
        if tokens is not None and (type(tokens) is not int or tokens < 1):
            raise SettingError(f"tokens is {shown(tokens)}; accepted is a whole number from 1")
        self._texts: _core._Generation | None = None
        self.system = system
        self.turns: list[tuple[str, str]] = []
        self._generator, self._sampling, self._tokens, self._variables = generator, sampling, tokens, variables
        self.dropped = 0
        """Turns that the last question dropped."""
        self.tokens, self.seconds = 0, 0.0
        """Tokens of the last answer, and the time that they took."""

    def check(self) -> None:
        """Refuse a model without tokenizer or chat template, and a template that refuses the system message.

        Raises:
            DataError: as :meth:`TextGenerator.chat_ids`.
            SettingError: as :meth:`TextGenerator.chat_ids`.
        """
        self._ids("a question")

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.turns.clear()
        self._texts = None

    def messages(self, question: str | None = None) -> list[dict[str, str]]:
        """Return the conversation as messages, with a further question of the user.

        Args:
            question: what the user says next.

        Returns:
            A ``role`` and a ``content`` each.
        """
        return self._messages(question, 0)

    def _messages(self, question: str | None, dropped: int) -> list[dict[str, str]]:
        said = [] if self.system is None else [("system", self.system)]
        for user, answer in self.turns[dropped:]:
            said += [("user", user), ("assistant", answer)]
        said += [] if question is None else [("user", question)]
        return [{"role": role, "content": content} for role, content in said]

    def ask(self, question: str) -> Iterator[str]:
        """Answer a question, piece by piece. Closing the iterator ends the answer, which stays as far as it was said.

        Args:
            question: what the user says.

        Returns:
            An iterator over pieces of whole characters.

        Raises:
            DTypeError: as :meth:`TextGenerator.chat_ids`.
            DataError: as :meth:`TextGenerator.chat_ids`.
            RangeError: for a question that the model has too few positions for.
            SettingError: as :meth:`TextGenerator.answer_ids`.
            ContainerError: as :meth:`TextGenerator.answer_ids`.
        """
        prompt, tokens = self._fitting(question)
        if self._texts is None:
            self._texts = self._generator._conversation(prompt, self._sampling)
        else:
            self._texts.replace(0, prompt)
        return self._said(question, self._generator._answered(self._texts, tokens))

    def _said(self, question: str, ids: Iterator[int]) -> Iterator[str]:
        self.tokens, self.seconds, begin = 0, 0.0, time.perf_counter()
        answer = ""

        def counted() -> Iterator[int]:
            for number in ids:
                self.tokens += 1
                yield number

        try:
            for piece in self._generator.tokenizer.decode_stream(counted(), replace=True):
                answer += piece
                yield piece
        except OctavoError:
            self._texts = None  # of which nothing is certain now
            raise
        except BaseException:  # Ctrl-C, or the reader has enough
            self._end(question, answer, begin)
            raise
        self._end(question, answer, begin)

    def _end(self, question: str, answer: str, begin: float) -> None:
        self.seconds = time.perf_counter() - begin
        self.turns.append((question, answer))

    def _fitting(self, question: str) -> tuple[list[int], int]:
        """Return the ids of the conversation and the most tokens of the answer, without turns that do not fit.

        A question that is refused drops none.
        """
        self.dropped, dropped = 0, 0
        prompt, positions, most = self._ids(question), self._generator.positions, self._tokens or CHAT_TOKENS
        if positions is None:
            return self._generator._prepared(prompt, most)
        # A quarter of the positions is for the answer, or what was asked for where that is less.
        answer = max(1, min(most, positions // 4))
        while len(prompt) + answer - 1 > positions and dropped < len(self.turns):
            dropped += 1
            prompt = self._ids(question, dropped)
        if len(prompt) > positions:
            raise RangeError(
                f"a message of {len(prompt)} tokens, system message and template included; the model has {positions} "
                "positions; shorten it"
            )
        prepared = self._generator._prepared(prompt, min(most, positions - len(prompt) + 1))
        del self.turns[:dropped]
        self.dropped = dropped
        return prepared

    def _ids(self, question: str, dropped: int = 0) -> list[int]:
        """Return the ids of the conversation without its first turns."""
        return self._generator.chat_ids(self._messages(question, dropped), variables=self._variables)
