"""Conversations as text by a chat template, in a sandbox: files of data must not run code. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dither.registry.config.errors import Refused

from ...missing_library import require_extra
from .text_files import NotText, check_encodable
from .tokenizers.folder import read_template

if TYPE_CHECKING:
    from jinja2 import Template

    from .tokenizers.base import Ids, Span, Tokenizer

__all__ = ["ChatTemplate", "Piece", "encode_piece", "read_messages", "render_chat"]

ROLES = ("system", "user", "assistant")
KEYS = ("role", "content")
"""Keys of a message whose special tokens have a place in the text, or cannot occur."""
Message = Mapping[str, Any]
PRIVATE = range(0xF0000, 0xFFFFE)
"""Characters without meaning, of which two that a text lacks enclose messages."""


class Piece(NamedTuple):
    """A part of an example, known or learned.

    Attributes:
        text: Its text.
        learned: Whether the loss is on it.
        rendered: Whether special tokens that a chat template wrote are ids, not letters.
        contents: Offsets of messages in rendered text, whose special tokens are letters.
        unplaced: What was rendered without an offset, and may not contain special tokens.
    """

    text: str
    learned: bool = False
    rendered: bool = False
    contents: tuple[Span, ...] = ()
    unplaced: tuple[str, ...] = ()

    def part(self, start: int, stop: int | None = None, **changes: Any) -> Piece:
        """Return the rendered text between two offsets."""
        text = self.text[start:stop]
        contents = []
        for first, last in self.contents:
            span = (max(first - start, 0), min(last - start, len(text)))
            if span[0] < span[1]:
                contents.append(span)
        return self._replace(text=text, contents=tuple(contents), **changes)


def encode_piece(piece: Piece, tokenizer: Tokenizer) -> Ids:
    """Return the ids of a piece; NotText if special tokens may be those of a message."""
    if not piece.rendered:
        return tokenizer.encode(piece.text)
    for text in piece.unplaced:
        if tokenizer.quotes_marks(text):
            message = "the chat template changes a message that quotes special tokens"
            raise NotText("template", f"{message}: {text[:80]!r}")
    return tokenizer.encode_rendered(piece.text, piece.contents)


class ChatTemplate:
    """A chat template: a folder of a tokenizer, its tokenizer_config.json, or a file with it.

    Raises:
        Refused: It is missing or not valid Jinja.
    """

    def __init__(self, file: Path) -> None:
        where = ("chat_template",)
        require_extra("language", "a chat template", where)
        self.file = file
        try:
            text, self._tokens = read_template(file)
            self._template = _compile(text)
        # A template raises anything, also when it is compiled.
        except Exception as error:
            raise self._refused(error) from None

    def prompt(self, text: str) -> Piece:
        """Render a message of the user, and the beginning of the answer."""
        return self.conversation([{"role": "user", "content": text}])

    def conversation(self, messages: Sequence[Message]) -> Piece:
        """Render messages, and the beginning of an answer; Refused if the template cannot."""
        try:
            return self._render_piece(messages, answer=True)
        except NotText as error:
            raise self._refused(error) from None

    def pieces(self, messages: Sequence[Message]) -> Iterator[Piece]:
        """Yield the text before each answer of the assistant, which is known, and the answer with its end.

        Messages after the last answer are left out.

        Raises:
            NotText: The template refuses the messages, or renders earlier ones otherwise once an
                answer follows, so that no text is before all of an answer.
        """
        done = ""
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = self._render(messages[:number], answer=True)
            rendered = self._render_piece(messages[: number + 1], answer=False)
            text = rendered.text
            if not prompt.startswith(done) or not text.startswith(prompt):
                reason = (
                    f"the chat template changes the text before message {number + 1}"
                )
                raise NotText("template", reason)
            yield rendered.part(len(done), len(prompt))

            answer = text.removeprefix(prompt)
            content = message["content"]
            # Many templates trim answers.
            if not answer.startswith(content):
                content = content.strip()
            # Marks that an answer quotes are letters.
            if answer.startswith(content):
                yield Piece(content, learned=True)
                answer = answer.removeprefix(content)
            yield rendered.part(len(text) - len(answer), learned=True)
            done = text

    def _render_piece(self, messages: Sequence[Message], *, answer: bool) -> Piece:
        """Render messages, and find them in the text.

        They are rendered again with a private character on each side. If that gives the same text
        otherwise, the template has not changed them, and they are between these characters.
        """
        text = self._render(messages, answer=answer)
        check_encodable(text)
        contents = [message["content"] for message in messages]
        others = []
        for message in messages:
            rest = {key: message[key] for key in message if key not in KEYS}
            if rest:
                others.append(json.dumps(rest, ensure_ascii=False, default=str))
                check_encodable(others[-1])

        used = {*text, *"".join(contents)}
        free = (chr(code) for code in PRIVATE if chr(code) not in used)
        begin = next(free)
        end = next(free)
        try:
            marked = self._render(_enclosed(messages, begin, end), answer=answer)
        except NotText:
            marked = ""

        cores = {content.strip() for content in contents}
        spans = _spans(marked, cores, begin, end)
        plain, removed = re.subn(f"[{begin}{end}]", "", marked)
        if plain == text and removed == 2 * len(spans):
            return Piece(text, rendered=True, contents=spans, unplaced=tuple(others))
        return Piece(text, rendered=True, unplaced=(*contents, *others))

    def _render(self, messages: Sequence[Message], *, answer: bool) -> str:
        try:
            return self._template.render(
                messages=messages,
                # transformers passes these names always, so templates test them.
                tools=None,
                documents=None,
                add_generation_prompt=answer,
                **self._tokens,
            )
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise NotText("template", f"the chat template fails: {message}") from None

    def _refused(self, error: Exception) -> Refused:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, NotText):
            reason = error.message
        message = f"{self.file}: no usable chat template: {reason}"
        return Refused(message, ("chat_template",), code="unreadable-file")


def _enclosed(messages: Sequence[Message], begin: str, end: str) -> list[Message]:
    """Return messages with a character on each side of their text."""
    enclosed: list[Message] = []
    for message in messages:
        content = message["content"]
        core = content.strip()
        # White space stays outside: templates trim it.
        inside = f"{begin}{core}{end}" if core else ""
        enclosed.append({**message, "content": content.replace(core, inside, 1)})
    return enclosed


def _spans(
    marked: str, cores: Collection[str], begin: str, end: str
) -> tuple[Span, ...]:
    """Return the offsets of enclosed texts, in the text without the enclosing characters."""
    spans: list[Span] = []
    for match in re.finditer(f"{begin}([^{begin}{end}]*){end}", marked):
        start = match.start() - 2 * len(spans)
        if match[1] in cores:
            spans.append((start, start + len(match[1])))
    return tuple(spans)


def _compile(text: str) -> Template:
    from jinja2 import TemplateError, Undefined
    from jinja2.ext import Extension
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Required(Undefined):
        """An unknown name, which may be tested but not written."""

        __str__ = Undefined._fail_with_undefined_error
        __iter__ = Undefined._fail_with_undefined_error

    class Generation(Extension):
        """The tag that encloses answers, which are known without it."""

        tags = {"generation"}

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        # That of Jinja is for HTML, and writes < as \\u003c.
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    # The environment of transformers, whose templates these are.
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=Required,
        extensions=["jinja2.ext.loopcontrols", Generation],
    )
    sandbox.filters["tojson"] = tojson
    sandbox.globals["raise_exception"] = raise_exception
    return sandbox.from_string(text)


def read_messages(messages: Sequence[Any], *, table: bool = False) -> Sequence[Message]:
    """Return the messages of a conversation; NotText if one has no role or text.

    In a table every message has the keys of all, of which those without a value are left out.
    """
    read: list[Message] = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            kind = type(message).__name__
            raise NotText("key", f"message {number} is {kind}, not an object")
        role = message.get("role")
        if role not in ROLES:
            known = ", ".join(ROLES)
            raise NotText("key", f"message {number} has role {role!r}, not {known}")
        content = message.get("content")
        if not isinstance(content, str):
            kind = type(content).__name__
            raise NotText("key", f"content of message {number} is {kind}, not a string")
        check_encodable(content)
        if role == "assistant" and not content:
            raise NotText("key", f"message {number}, an answer, is empty")
        kept = {}
        for key, value in message.items():
            if value is not None or not table:
                kept[key] = value
        read.append(kept)
    return read


def render_chat(file: Path, prompt: str) -> Piece:
    """Render a prompt: a message of the user, or a list of messages in JSON."""
    template = ChatTemplate(file)
    try:
        value = json.loads(prompt)
    except (ValueError, RecursionError):
        value = None

    first = None
    if isinstance(value, list) and value:
        first = value[0]

    # Other JSON is text of the user.
    if not isinstance(first, dict) or "role" not in first:
        return template.prompt(prompt)
    try:
        return template.conversation(read_messages(value))
    except NotText as error:
        where = ("task", "prompt")
        raise Refused(error.message, where, code="invalid-value") from None
