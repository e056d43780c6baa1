"""A conversation has the ids and the answers of transformers; what is too long or refused is said."""

import json

import pytest
from helpers.chat_models import SPECIAL, chat_model
from helpers.chat_templates import TEMPLATES
from octavo import ContainerError, DataError, DTypeError, RangeError, Sampling, SettingError, TextGenerator, _core
from octavo.engine.conversation import Conversation

TALK = [
    {"role": "system", "content": "sit"},
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "ran \N{CAT FACE}"},
    {"role": "user", "content": "the <|im_end|> dog"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat") / "m"
    chat_model(path)
    return path


@pytest.mark.parametrize("family", ["Qwen 2.5", "Qwen 3", "Llama 3", "Zephyr"])
def test_ids_are_those_of_transformers(tmp_path, family):
    chat_model(tmp_path / "m", template=TEMPLATES[family][0], settings={"bos_token": "<|endoftext|>"})
    import transformers

    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "m"), TextGenerator.load(tmp_path / "m")
    for messages in (TALK, TALK[:2], TALK[1:]):
        for prompt in (True, False):
            wanted = theirs.apply_chat_template(messages, add_generation_prompt=prompt)["input_ids"]
            assert ours.chat_ids(messages, add_generation_prompt=prompt) == wanted
        wanted = theirs.apply_chat_template(messages, add_generation_prompt=True, enable_thinking=False)["input_ids"]
        assert ours.chat_ids(messages, variables={"enable_thinking": False}) == wanted


def test_answers_are_those_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    for seed in range(3):
        path = tmp_path / str(seed)
        model = chat_model(path, seed=seed)
        import transformers

        theirs, ours = transformers.AutoTokenizer.from_pretrained(path), TextGenerator.load(path)
        ids = ours.chat_ids(TALK)
        ends = [theirs.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
        whole = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=60, eos_token_id=ends)[0]
        answer = whole[len(ids) :].tolist()
        answer = [number for number in answer if number < ours.vocabulary]
        wanted = theirs.decode(answer, skip_special_tokens=True)
        assert ours.chat(TALK, tokens=60) == wanted == "".join(ours.stream_chat(TALK, tokens=60))


def ending(path, generator, how):
    """The first id that an answer has not had before, so that a text that ends with it differs."""
    ids = list(generator.answer_ids(generator.chat_ids(TALK), how, tokens=40))
    return ids, next(number for at, number in enumerate(ids[5:], 5) if number not in ids[:at])


@pytest.mark.parametrize("place", ["generation_config list", "generation_config", "config", "eos_token"])
def test_an_answer_ends_where_any_of_the_files_says_so(tmp_path, folder, place):
    how = Sampling(temperature=1.0, seed=3)
    ids, end = ending(folder, TextGenerator.load(folder), how)
    token = TextGenerator.load(folder).tokenizer.token(end)
    if place == "eos_token":
        number = next(n for n in ids[5:] if TextGenerator.load(folder).tokenizer.token(n).isascii())
        token = TextGenerator.load(folder).tokenizer.token(number).decode()
        chat_model(tmp_path / "m", settings={"eos_token": token})
        wanted = ids[: ids.index(number)]
    else:
        eos = {"eos_token_id": [299, end] if "list" in place else end}
        chat_model(tmp_path / "m", generation={} if place == "config" else eos)
        if place == "config":
            config = json.loads((tmp_path / "m" / "config.json").read_text())
            (tmp_path / "m" / "config.json").write_text(json.dumps(config | eos))
        wanted = ids[: ids.index(end)]
    ours = TextGenerator.load(tmp_path / "m")
    assert list(ours.answer_ids(ours.chat_ids(TALK), how, tokens=40)) == wanted
    plain = [token for (token,) in ours.generate_ids([ours.chat_ids(TALK)], how, tokens=40)]
    assert (plain == wanted) or place == "eos_token"


def test_special_tokens_are_not_printed(folder):
    ours = TextGenerator.load(folder)
    special, prompt = set(ours.tokenizer.special.values()), ours.chat_ids(TALK)
    hidden = 0
    for seed in range(8):
        how = Sampling(temperature=5.0, seed=seed)
        text = ours.chat(TALK, how, tokens=60)
        every = [token for (token,) in ours.generate_ids([prompt], how, tokens=60, stop=ours._answer_ends)]
        hidden += len(special & set(every))
        assert text == "".join(ours.tokenizer.decode_stream([n for n in every if n not in special]))
        assert not any(token in text for token in SPECIAL)
    assert hidden


def test_a_stop_ends_an_answer_before_it(folder):
    ours, how = TextGenerator.load(folder), Sampling(temperature=1.0, seed=3)
    whole = ours.chat(TALK, how, tokens=40)
    stop = whole[len(whole) // 2 :][:2]
    assert ours.chat(TALK, how, tokens=40, stop=stop) == whole[: whole.index(stop)]


def test_a_conversation_keeps_turns_and_what_was_said_of_a_stopped_answer(folder):
    talk = Conversation(TextGenerator.load(folder), "sit", tokens=20)
    first = "".join(talk.ask("the cat"))
    assert talk.messages()[1:] == [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": first}]
    assert 0 < talk.tokens <= 20 and talk.seconds > 0
    pieces = talk.ask("the dog")
    part = next(pieces) + next(pieces)
    pieces.close()
    assert talk.turns == [("the cat", first), ("the dog", part)]
    plain = TextGenerator.load(folder).chat([*talk.messages(), {"role": "user", "content": "why"}], tokens=20)
    assert "".join(talk.ask("why")) == plain
    talk.reset()
    assert talk.messages() == [{"role": "system", "content": "sit"}]


def test_a_long_conversation_drops_its_oldest_turns_and_keeps_the_system_message(tmp_path):
    chat_model(tmp_path / "m", positions=2000)
    ours = TextGenerator.load(tmp_path / "m")
    talk = Conversation(ours, "sit", tokens=30)
    dropped, longest = 0, 0
    for number in range(40):
        "".join(talk.ask(f"{number} " + "the cat sat on the mat. " * 20))
        dropped += talk.dropped
        assert len(talk.turns) == number + 1 - dropped
        longest = max(longest, len(ours.chat_ids(talk.messages())))
    assert dropped and longest > 1900
    assert talk.messages()[0] == {"role": "system", "content": "sit"}
    before = list(talk.turns)
    with pytest.raises(RangeError, match="2000 positions; shorten it"):
        talk.ask("the cat " * 2000)
    assert (talk.turns, talk.dropped) == (before, 0)  # a question that is refused drops none
    assert "".join(talk.ask("the dog"))
    assert talk.turns[0] in before


def test_what_a_folder_lacks_is_said(tmp_path):
    chat_model(tmp_path / "m", template=None)
    ours = TextGenerator.load(tmp_path / "m")
    with pytest.raises(DataError, match=rf"{tmp_path}/m: no chat template.*without --chat.*chat_template\.jinja"):
        ours.chat(TALK)
    assert isinstance(ours.generate("the cat", tokens=3), str)
    (tmp_path / "m" / "tokenizer.json").rename(tmp_path / "m" / "tokenizer.model")
    with pytest.raises(DataError, match=r"AutoTokenizer\.from_pretrained\(.*\)\.save_pretrained\("):
        TextGenerator.load(tmp_path / "m").generate("the cat")


def test_messages_and_options_are_checked_before_work(folder):
    ours = TextGenerator.load(folder)
    for messages, error in (("a", DTypeError), ([], DataError), ([{"role": "user"}], DataError)):
        with pytest.raises(error, match="message"):
            ours.stream_chat(messages)
    with pytest.raises(SettingError, match="stop is"):
        ours.stream_chat(TALK, stop=5)
    with pytest.raises(SettingError, match="tokens is"):
        ours.stream_chat(TALK, tokens=0)
    with pytest.raises(SettingError, match="variables"):
        ours.stream_chat(TALK, variables={"messages": []})
    with pytest.raises(RangeError, match="400 positions"):
        ours.chat([{"role": "user", "content": "the cat " * 400}])
    with pytest.raises(DTypeError, match="generator is a str"):
        Conversation("m")


@pytest.mark.parametrize("kind", ["SentencePiece, prefix", "SentencePiece", "Unigram", "another split"])
def test_tokenizers_of_every_kind_generate_and_chat_as_in_transformers(tmp_path, kind):
    torch = pytest.importorskip("torch")
    from helpers.foreign_tokenizers import KINDS, SPECIAL

    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens(SPECIAL)
    template, bos, eos = TEMPLATES["Mistral v3"]
    settings = {"bos_token": bos, "eos_token": eos}
    model = chat_model(tmp_path / "m", tokenizer=tokenizer, template=template, settings=settings)
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    ours = TextGenerator.load(tmp_path / "m")
    talk = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}, TALK[1]]
    ids = theirs.apply_chat_template(talk)["input_ids"]
    assert ours.chat_ids(talk) == ids
    end = theirs.convert_tokens_to_ids("</s>")
    whole = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=40, eos_token_id=end)[0].tolist()
    text, wanted = ours.chat(talk, tokens=40), theirs.decode(whole[len(ids) :], skip_special_tokens=True)
    # Bytes of no character may come behind others, which have been given as characters by then.
    assert text == wanted or ("\ufffd" in text and "\ufffd" in wanted)
    prompt = theirs("the cat", add_special_tokens=False)["input_ids"]
    whole = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=20, eos_token_id=9999)[0].tolist()
    text = theirs.decode(whole)
    if "\ufffd" not in text:
        assert "the cat" + ours.generate("the cat", tokens=20) == text


def test_special_tokens_beyond_the_ids_of_the_model_are_refused_where_they_are_used(tmp_path):
    chat_model(tmp_path / "m")
    content = json.loads((tmp_path / "m" / "tokenizer.json").read_text())
    picture = {**content["added_tokens"][-1], "id": TextGenerator.load(tmp_path / "m").vocabulary, "content": "<image>"}
    content["added_tokens"].append(picture)
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(content))
    ours = TextGenerator.load(tmp_path / "m")
    assert ours.chat(TALK, tokens=3) is not None
    with pytest.raises(DataError, match=f"id {picture['id']}; accepted are ids below"):
        ours.chat([{"role": "user", "content": "<image>"}])


@pytest.mark.parametrize("place", [0, 1, 63, 64, 65, 299, 300])
def test_a_text_whose_ids_are_replaced_gives_the_tokens_of_a_new_one(folder, place):
    core, how = TextGenerator.load(folder)._core, (1.0, 0, 1.0, 5)
    first = [(7 * number) % 290 for number in range(300)]
    other = [*first[:place], *((11 * number + 1) % 290 for number in range(40))]
    texts = _core._Generation(core, [first], how, True, 7)
    drawn = [texts.advance()[0] for _ in range(3)]
    for ids in (other, [*first, *drawn, 5, 6], first, first[: place + 1]):
        texts.replace(0, ids)
        fresh = _core._Generation(core, [ids], how, True, 7)
        assert [texts.advance()[0] for _ in range(5)] == [fresh.advance()[0] for _ in range(5)]
    for wrong in ([], [100_000], list(range(100)) * 9):
        with pytest.raises(ContainerError):
            texts.replace(0, wrong)
    with pytest.raises(ContainerError, match="text 1 of 1"):
        texts.replace(1, [1])


def test_a_question_costs_its_own_tokens_and_not_those_of_the_conversation(tmp_path):
    chat_model(tmp_path / "m", positions=3000)
    ours = TextGenerator.load(tmp_path / "m")
    talk = Conversation(ours, tokens=10)
    "".join(talk.ask("the cat sat on the mat. " * 100))
    assert len(ours.chat_ids(talk.messages())) > 600
    prompt, _ = talk._fitting("the dog")
    talk._texts.replace(0, prompt)
    assert talk._texts.feed() == 0  # a block of 256 positions has all that is new
    assert ours._conversation(prompt, Sampling()).feed() > 256
