"""Chat templates give the text of transformers, and a hostile one costs bounded time and memory."""

import json
import os
import threading
import time

import pytest
from helpers.chat_templates import CONVERSATIONS, TEMPLATES
from helpers.processes import are_gone
from octavo import DataError, DTypeError, SettingError
from octavo.engine import chat_template
from octavo.engine.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "hello"}]
QUICK = 5
"""Seconds in which a template is refused that no limit of time has to end; a process starts in one."""
MEMORY = 600 << 20
"""Bytes of the process at most: those that it begins with, and by which it may grow."""


def write(folder, template=None, *, bos=None, eos=None, **settings):
    folder.mkdir(exist_ok=True)
    settings |= {name: token for name, token in (("bos_token", bos), ("eos_token", eos)) if token is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="module")
def peer():
    """A tokenizer of transformers with no special token: what it renders depends on the template alone."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")

    def tokenizer(template, **tokens):
        core = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
        built = transformers.PreTrainedTokenizerFast(tokenizer_object=core, **tokens)
        built.chat_template = template
        return built

    return tokenizer


def outcome(render, *arguments, **options):
    try:
        return render(*arguments, **options)
    except Exception as error:
        return str(error)


@pytest.mark.parametrize("family", TEMPLATES)
def test_texts_are_those_of_transformers(tmp_path, peer, family):
    source, bos, eos = TEMPLATES[family]
    tokens = {name: token for name, token in (("bos_token", bos), ("eos_token", eos)) if token is not None}
    theirs, ours = peer(source, **tokens), ChatTemplate.load(write(tmp_path / "m", source, bos=bos, eos=eos))
    for messages in CONVERSATIONS:
        for prompt in (True, False):
            for variables in ({}, {"enable_thinking": False}, {"enable_thinking": True, "controls": {"length": "é<"}}):
                how = {"add_generation_prompt": prompt}
                wanted = outcome(theirs.apply_chat_template, messages, tokenize=False, **how, **variables)
                text = outcome(ours.render, messages, **how, variables=variables)
                refusal = f"the template refuses this conversation: {wanted}"
                assert text == wanted or text.endswith(refusal), (family, messages)


RULES = {
    "blocks": "{% if true %}\n  a\n  {% endif %}\nb\n\n",
    "comments": "a {# hidden #} b\n{#- c -#}\n d",
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "json": "{{ {'b': 'ü<&>', 'a': [1, 2.5, none, true]} | tojson }}{{ messages | tojson(indent=4, sort_keys=true) }}",
    "json of Jinja's arguments": "{{ messages | tojson(ensure_ascii=true, separators=(',', ':')) }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "dictionary": "{% set d = dict(a=1, **{'b': 2}) %}{{ d }}{% for k, v in d.items() %}{{ k ~ v }}{% endfor %}",
    "keys": "{{ dict.fromkeys(['a', 'b'], 3) }}",
    "undefined": "{{ nothing }}{{ nothing is defined }}{{ bos_token is defined }}{{ pad_token is defined }}",
    "what every template gets": "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}",
    "generation": "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }} said{% endgeneration %}{{ x }}",
    "macro": "{% macro f(x, y=2) %}{{ x ~ y }}{% endmacro %}{{ f(1) }}{% call(z) f(3) %}{{ z }}{% endcall %}",
    "filters": "{{ messages | map(attribute='role') | join('|') | upper | replace('S', 'z') | pprint }}",
    "escapes": "{{ '<&>\\u00e9\\n\\t' | e }}{{ '\\x41' }}",
    "time": "{{ strftime_now('%Y')[:2] }}",
    "changes": "{{ messages.append(1) }}",
    "refused attribute": "{{ ''.__class__.__mro__ }}",
    "refused namespace": "{% set ns = namespace(__class__=1) %}",
    "syntax": "{% if %}",
}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_rendering_is_that_of_transformers(tmp_path, peer, rule):
    theirs, ours = peer(RULES[rule], eos_token="<e>"), ChatTemplate(RULES[rule], "m", {"eos_token": "<e>"})
    for messages in CONVERSATIONS[:4]:
        try:
            wanted = theirs.apply_chat_template(messages, tokenize=False)
        except Exception:
            with pytest.raises(DataError, match="the template fails"):
                ours.render(messages, add_generation_prompt=False)
        else:
            assert ours.render(messages, add_generation_prompt=False) == wanted


def test_a_template_is_found_where_transformers_finds_it(tmp_path):
    source = "{{ eos_token }}{{ messages[0].content }}"
    token = {"content": "<e>", "lstrip": False, "__type": "AddedToken"}
    file = write(tmp_path / "file", source, eos=token, chat_template="not this one")
    text = write(tmp_path / "text", eos="<e>", chat_template=source)
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": source}]
    listed = write(tmp_path / "list", eos="<e>", chat_template=several)
    legacy = write(tmp_path / "legacy", source)
    (legacy / "special_tokens_map.json").write_text(json.dumps({"eos_token": token}))
    for folder in (file, text, listed, legacy):
        assert ChatTemplate.load(folder).render(HELLO) == "<e>hello"
        transformers = pytest.importorskip("transformers")
        tokenizers = pytest.importorskip("tokenizers")
        tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        assert theirs.apply_chat_template(HELLO, tokenize=False) == "<e>hello"


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{{ 'a' * 10**10 }}", "256 MB"),
        ("{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "256 MB"),
        ("{% for i in range(99) %}{{ 'a' * 1000000 }}{% endfor %}", "16 MB"),
        ("{{ '%1000000000s' % 'a' }}", "256 MB"),
        ("{{ range(10**9) | list }}", "Range too big"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% import '/etc/passwd' as x %}", "no loader"),
        ("{% extends '/etc/passwd' %}", "no loader"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ lipsum.__globals__['os'].popen('id').read() }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ raise_exception.__globals__['sys'].exit() }}", "unsafe"),
        ("{{ dict.__class__.__subclasses__() }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "too deeply"),
        ("{{ " + "(" * 900 + "1" + ")" * 900 + " }}", "too deeply"),
        ("{{ '\\ud800' }}", "surrogates"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{% if", "line 1"),
        ("{{ raise_exception('x' * 10**6) }}", "refuses this conversation: x"),
    ],
)
def test_a_hostile_template_is_refused_at_once(template, named):
    ours, begin = ChatTemplate(template, "m/chat_template.jinja", {}), time.monotonic()
    with pytest.raises(DataError, match="chat_template") as caught:
        ours.render(HELLO)
    assert named in str(caught.value) and len(str(caught.value)) < 700
    assert time.monotonic() - begin < QUICK
    assert peak(ours) < MEMORY


def peak(template):
    """Bytes that the process of a template has held at most; 0 where it has ended."""
    try:
        with open(f"/proc/{template._child.pid}/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    except (OSError, AttributeError, StopIteration):
        return 0


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ lipsum(n=100000000) | length }}",
    ],
)
def test_a_template_without_end_is_ended(monkeypatch, template):
    monkeypatch.setattr(chat_template, "WAIT_S", 1)
    ours, begin = ChatTemplate(template, "m", {}), time.monotonic()
    with pytest.raises(DataError, match="takes too long; accepted are 10 seconds"):
        ours.render(HELLO)
    assert time.monotonic() - begin < 1 + QUICK


def test_the_process_cannot_open_files_and_is_ended_by_the_system_where_nobody_waits(tmp_path):
    ours = ChatTemplate("{{ messages[0].content }}", "m", {})
    ours.render(HELLO)
    with open(f"/proc/{ours._child.pid}/limits") as file:
        limits = {line[:26].strip(): line[26:].split()[0] for line in file}
    assert limits["Max open files"] == limits["Max file size"] == "0"
    assert 9 <= int(limits["Max cpu time"]) <= 11
    assert int(limits["Max address space"]) < 2 << 30


def test_one_process_renders_a_conversation_and_ends_with_it():
    ours = ChatTemplate("{{ messages[0].content }}", "m", {})
    assert ours.render(HELLO) == "hello"
    number = ours._child.pid
    assert ours.render(HELLO) == "hello" and ours._child.pid == number
    ours._child.kill()  # as Linux does with the children of a thread that ends
    assert ours.render(HELLO) == "hello" and ours._child.pid != number
    others = []
    thread = threading.Thread(target=lambda template: others.append(template.render(HELLO)), args=[ours])
    thread.start()
    thread.join()
    assert others == ["hello"] and ours.render(HELLO) == "hello"
    number = ours._child.pid
    ours.close()
    assert are_gone([number])
    assert ours.render(HELLO) == "hello"
    number = ours._child.pid
    del ours
    assert are_gone([number])


def test_nothing_of_the_current_folder_is_run(tmp_path, monkeypatch):
    for name in ("jinja2.py", "json.py", "octavo.py"):
        (tmp_path / name).write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert ChatTemplate("{{ messages[0].content }}", "m", {}).render(HELLO) == "hello"


def test_folders_and_messages_are_checked(tmp_path):
    for settings, named in (
        ({}, r"no chat template.*without --chat.*chat_template\.jinja"),
        ({"chat_template": 5}, "chat_template is 5"),
        ({"chat_template": [{"name": "rag", "template": "x"}]}, "no template named default"),
    ):
        with pytest.raises(DataError, match=named):
            ChatTemplate.load(write(tmp_path / "m", **settings))
    ours = ChatTemplate("{{ messages[0].content }}", "m", {})
    for messages, error, named in (
        ([], DataError, "messages is empty"),
        ("hello", DTypeError, "messages is one str"),
        (5, DTypeError, "messages is a int"),
        (["hello"], DTypeError, "message 0 is a str"),
        ([*HELLO, {"role": "user"}], DataError, "message 1 has the fields"),
        ([{**HELLO[0], "name": "x"}], DataError, "accepted are role and content"),
        ([{"role": "", "content": "x"}], DataError, "empty role"),
        ([{"role": "user", "content": None}], DTypeError, "message 0: content is a NoneType"),
        ([{"role": "user", "content": "\ud800"}], DataError, "surrogate"),
    ):
        with pytest.raises(error, match=named):
            ours.render(messages)
    for variables in ({"messages": 1}, {"x": object()}, {5: 1}, [1]):
        with pytest.raises(SettingError, match="variables"):
            ours.render(HELLO, variables=variables)


def test_the_environment_of_python_reaches_the_process(monkeypatch):
    monkeypatch.setitem(os.environ, "TZ", "UTC")
    assert len(ChatTemplate("{{ strftime_now('%H:%M') }}", "m", {}).render(HELLO)) == 5
