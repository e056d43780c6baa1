"""Retrieval: neighbours of finished chunks alone, from other documents and no held-out text; a head that remembers."""

import math

import pytest
import torch
from octavo.errors import ContractError, ModelError, SettingError
from octavo.lab.language.gpt import GPT, Attention, GPTConfig, NearestNeighbours, Retrieval, contracts
from octavo.lab.language.gpt.chunk_store import ChunkStore
from octavo.lab.language.gpt.copied_text import run_hashes, without_copies
from octavo.lab.language.techniques import technique
from octavo.train import exact_nll

VOCABULARY, END = 50, 0


def text(documents=30, length=40, seed=0):
    """Documents of random ids, each of which begins with the end of text."""
    ids = torch.randint(1, VOCABULARY, (documents, length), generator=torch.Generator().manual_seed(seed))
    ids[:, 0] = END
    return ids.flatten()


def filled(stream, entries=400, chunk=8, overlap=4):
    store = ChunkStore(entries, chunk, overlap)
    store.fill(stream, END)
    return store


def retro(stream, *, joint=False, chunk=4, entries=400, pattern="ar"):
    config = technique("mixer", "retrieval").config(
        heads=4, chunk=chunk, entries=entries, overlap=3, joint=joint, neighbours=3
    )
    torch.manual_seed(0)
    model = GPT(GPTConfig(
        vocabulary=VOCABULARY, width=32, pattern=pattern, end_of_text=END,
        mixers={letter: {"a": Attention(heads=4), "r": config}[letter] for letter in pattern},
    ))  # fmt: skip
    model.count(stream)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


# --- the store --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vocabulary", "nbytes"), [(50, 2), (65_535, 2), (65_536, 4)])
def test_ids_take_two_bytes_where_the_vocabulary_fits_and_all_come_back(vocabulary, nbytes):
    stream = torch.randint(1, vocabulary, (40,)).index_fill(0, torch.tensor([0]), END)
    stream[1:3] = vocabulary - 1
    store = ChunkStore(8, 8, 4)
    store.narrow(vocabulary)
    store.fill(stream, END)
    assert store.held_SC.element_size() == nbytes
    assert torch.equal(store.tokens_SC[:5, :8].flatten(), stream) and bool((store.tokens_SC[5:] == -1).all())
    assert bool((store.tokens_SC[4, 8:] == -1).all())  # nothing follows the last chunk


def test_neighbours_are_those_of_brute_force():
    stream = text()
    store = filled(stream)
    query = text(2, 24, seed=9).view(2, 24)
    tokens, scores = store.neighbours(query, 3)
    every = store.vectors(store.tokens_SC[:, :8])[store.document_S >= 0]
    rows = store.tokens_SC[store.document_S >= 0]
    for at in range(2):
        for chunk in range(3):
            cosines = every @ store.vectors(query[at : at + 1, 8 * chunk : 8 * chunk + 8])[0]
            best = cosines.topk(3)
            assert torch.allclose(scores[at, chunk], best.values, atol=1e-6)
            assert torch.equal(tokens[at, chunk], rows[best.indices])


def test_chunks_are_of_whole_documents_with_what_follows():
    stream = text(5, 20)
    store = filled(stream, entries=8)
    held = store.document_S[store.document_S >= 0]
    assert len(held) == 8 and held.bincount().unique().tolist() == [2]
    documents = stream.view(5, 20)
    for at, (row, owner) in enumerate(zip(store.tokens_SC, store.document_S, strict=True)):
        start = 8 * (at % 2)
        wanted = documents[owner][start : start + 16].tolist()
        assert row[row >= 0].tolist() == wanted


def test_a_text_gets_no_neighbours_of_its_own_document():
    stream = text()
    store = filled(stream)
    for at in (0, 13, 40, 87):
        window = stream[at : at + 32][None]
        own = (stream == END).cumsum(0)[at : at + 32].unique() - 0
        tokens, _ = store.neighbours(window, 5)
        starts = {tuple(row.tolist()): int(owner) for row, owner in zip(store.tokens_SC, store.document_S, strict=True)}
        for chunk in range(4):
            known = (stream == END).cumsum(0)[at : at + 8 * (chunk + 1)]
            whole = [int(d) for d in known.unique() if int((known == d).sum()) >= 4]
            found = {starts[tuple(row.tolist())] + 1 for row in tokens[0, chunk] if int(row[0]) >= 0}
            assert not found & set(whole), (at, chunk, own)


def test_neighbours_are_searched_without_what_comes_later():
    """C1 with re-retrieval: neighbours of a chunk stay when any later token changes."""
    store = filled(text())
    query = text(1, 33, seed=5)[None]
    before, _ = store.neighbours(query, 3)
    for cut in (8, 9, 16, 31):
        changed = query.clone()
        changed[:, cut:] = torch.randint(1, VOCABULARY, (1, 33 - cut))
        assert torch.equal(store.neighbours(changed, 3)[0][:, : cut // 8], before[:, : cut // 8])


def test_a_planted_copy_of_held_out_text_is_refused_by_name():
    held_out, stream = text(4, 60, seed=7), text()
    clean = filled(stream)
    clean.refuse_copies(held_out)
    planted = torch.cat([stream[:400], torch.tensor([END]), held_out[70:100], stream[400:]])
    store = filled(planted)
    with pytest.raises(
        ContractError, match=r"^store of chunks, document \d+: .* holds 13 tokens in a row .* from position 7"
    ):
        store.refuse_copies(held_out)
    owners = set(store.document_S.tolist())
    assert store.leave_out(held_out) == 1
    store.refuse_copies(held_out)
    assert len(owners - set(store.document_S.tolist()) - {-1}) == 1
    kept, removed = without_copies(planted, held_out, END)
    assert removed == 1 and not torch.isin(run_hashes(kept[None], 13), run_hashes(held_out[None], 13)).any()


def test_no_validation_chunk_is_ever_among_the_sources():
    """Held-out text whose documents were left out: none of its runs is in any neighbour that it finds itself."""
    held_out = text(4, 64, seed=7)
    store = filled(torch.cat([text(10), held_out, text(10, seed=3)]))
    assert store.leave_out(held_out) == 4
    tokens, _ = store.neighbours(held_out.view(4, 64), 4)
    runs = run_hashes(held_out[None], 4)[0]
    assert not torch.isin(run_hashes(tokens.flatten(0, 2), 4), runs).any()


# --- chunked cross-attention ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joint", [False, True])
def test_neighbours_are_read_from_the_last_token_of_their_chunk_to_the_last_but_one_of_the_next(joint):
    """The off-by-one: with other neighbours of chunk 1 alone, positions 7 to 10 change, and no other."""
    model = retro(text(), joint=joint, pattern="r")  # one block: no other carries a change on
    ids = text(1, 22, seed=5)[None]
    store = model.blocks[0].mixer.store
    before = model.trunk(ids)[0]
    found = store.neighbours

    def changed(ids_BT, count, query=None):
        tokens, scores = found(ids_BT, count, query)
        tokens = tokens.clone()
        tokens[:, 1] = (tokens[:, 1] + 7) % VOCABULARY
        return tokens, scores

    store.neighbours = changed
    moved = (model.trunk(ids)[0] - before).abs().amax((0, 2)) > 1e-6
    assert moved.nonzero().flatten().tolist() == [7, 8, 9, 10]


def test_retrieval_is_causal_and_decodes_at_borders_of_chunks():
    model = retro(text())
    for length in (3, 4, 5, 8, 9):
        ids = text(2, length, seed=5).view(2, length)
        contracts.check_decoding(model, ids)
        contracts.check_causality(model, ids)


def test_an_empty_store_is_plain_attention():
    model = retro(text(1, 2))
    assert model.blocks[1].mixer.store.is_empty
    ids = text(1, 22, seed=5)[None]
    plain = GPT(GPTConfig(vocabulary=VOCABULARY, width=32, pattern="aa", mixers={"a": Attention(heads=4)}))
    own = {name.replace("mixer.attention.", "mixer."): value for name, value in model.state_dict().items()}
    plain.load_state_dict({name: own[name] for name in plain.state_dict()})
    assert torch.equal(plain.eval()(ids), model(ids))


def test_a_joint_retriever_learns_its_query_through_the_scores():
    """The gradient reaches the query; a step along it raises the score of the neighbour that helps."""
    model = retro(text(), joint=True)
    mixer = model.blocks[1].mixer
    ids, targets = text(2, 24, seed=5).view(2, 24), text(2, 24, seed=6).view(2, 24)
    loss, _ = model(ids, targets)
    loss.backward()
    assert mixer.search.weight.grad.abs().max() > 0
    before = loss.item()
    with torch.no_grad():
        mixer.search.weight -= 1e-3 * mixer.search.weight.grad / mixer.search.weight.grad.norm()
    assert model(ids, targets)[0].item() < before
    assert retro(text()).blocks[1].mixer.search is None


def test_a_store_travels_with_the_weights():
    model, other = retro(text()), retro(text(3, 30, seed=8))
    ids = text(1, 22, seed=5)[None]
    assert not torch.equal(model(ids), other(ids))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(ids), other(ids))
    with pytest.raises(ModelError, match=r"no document fits; the shortest has 5 chunks"):
        filled(text(), entries=4)
    with pytest.raises(SettingError, match="overlap"):
        Retrieval(chunk=4, overlap=5)


# --- kNN-LM -----------------------------------------------------------------------------------------------------------


def knn(share=0.25, remember=True, **fields):
    torch.manual_seed(0)
    head = NearestNeighbours(share=share, entries=256, **{"neighbours": 5, **fields})
    model = GPT(GPTConfig(vocabulary=VOCABULARY, width=32, pattern="a", mixers={"a": Attention(heads=4)}, head=head))
    if remember:
        model.head.remember(model, text(), context=16)
    return model.eval()


def test_nearest_states_are_those_of_brute_force():
    model = knn()
    h = torch.randn(7, 32)
    found = model.head.near_log_probs(h).exp()
    for row, state in zip(found, h, strict=True):
        distances = [(float((state - key).square().sum()) / 32, int(token))
                     for key, token in zip(model.head.states_SD, model.head.next_S, strict=True)]  # fmt: skip
        nearest = sorted(distances)[:5]
        weights = [math.exp(-20.0 * (far - nearest[0][0])) for far, _ in nearest]
        wanted = torch.zeros(VOCABULARY)
        for weight, (_, token) in zip(weights, nearest, strict=True):
            wanted[token] += weight / sum(weights)
        assert torch.allclose(row, wanted, atol=1e-4)


def test_the_mixture_is_normalized_and_evaluates_exactly():
    model, stream = knn(), text(seed=4)[:200]
    contracts.check_normalization(model, stream[None, :50])
    contracts.check_one_loss(model, stream[None, :50], stream[None, 1:51])
    loss = exact_nll(model, stream, context=16)
    plain = exact_nll(knn(share=0.0), stream, context=16)
    assert loss.source_hash == plain.source_hash and loss.nats != plain.nats


def test_share_zero_or_nothing_stored_is_the_softmax():
    ids = text(1, 30, seed=5)[None]
    wanted = knn(share=0.0, remember=False)(ids)
    assert torch.equal(knn(share=0.0)(ids), wanted) and torch.equal(knn(remember=False)(ids), wanted)
    assert not torch.equal(knn()(ids), wanted)
    assert torch.equal(knn().train()(ids), knn(remember=False).train()(ids))


def test_what_was_seen_is_remembered():
    """States of the stored text itself find themselves: its next tokens get the store's whole share at least."""
    model, stream = knn(neighbours=1, sharpness=1e4), text()
    loss = exact_nll(model, stream[:129], context=16)
    assert loss.nats < -math.log(0.25)


def test_a_planted_copy_among_the_states_is_refused():
    model = knn()
    with pytest.raises(ContractError, match="store of states"):
        model.head.refuse_copies(text()[40:80])
    model.head.refuse_copies(text(seed=11))
