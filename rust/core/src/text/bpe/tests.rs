use std::collections::BTreeMap;

use proptest::prelude::*;

use super::character_classes::{Classes, is_white};
use super::special_tokens::AddedTokens;
use super::vocabulary::{Order, Parts};
use super::{Added, BytePairs, Learner, Pattern, PieceCounts, Special};

/// Bytes, and tokens of up to 6 of the bytes `ab '\n1` made by pairs of earlier ones.
fn toy(order_by_rank: bool, pattern: Pattern) -> BytePairs {
    let mut tokens: BTreeMap<u32, Vec<u8>> = (0..=255u8).map(|byte| (u32::from(byte), vec![byte])).collect();
    let mut merges = Vec::new();
    for both in ["aa", "ab", "aab", "ba", " a", "aaa", "aabba", " ab", "  ", "   ", "aaaa", "\n\n", "12", "中国"] {
        let (id, bytes) = (tokens.len() as u32, both.as_bytes());
        let find = |part: &[u8]| tokens.iter().find(|(_, token)| *token == part).map(|(&id, _)| id);
        let split = (1..bytes.len()).find_map(|at| Some((find(&bytes[..at])?, find(&bytes[at..])?)));
        if let Some((left, right)) = split {
            merges.push((left, right, id));
            tokens.insert(id, bytes.to_vec());
        }
    }
    let order = if order_by_rank { Order::Ranks } else { Order::Merges { merges, whole: false } };
    let added = [("<|end|>", true, false), ("<|e", true, false), ("1<|", false, true), ("中国a", false, false)];
    let added = (1000..)
        .zip(added)
        .map(|(id, (content, special, normalized))| Added { content: content.to_owned(), id, special, normalized })
        .collect();
    BytePairs::new(Parts { tokens, order, pattern, added, composed: false, around: Default::default() }).unwrap()
}

/// The definition: of all pairs that merge those of the lowest rank, the leftmost, until none is left.
fn reference(tokenizer: &BytePairs, piece: &[u8]) -> Vec<u32> {
    let mut ids: Vec<u32> = piece.iter().map(|&byte| u32::from(byte)).collect();
    let parts = tokenizer.parts();
    loop {
        let rank = |pair: &[u32]| match &parts.order {
            Order::Merges { merges, .. } => {
                merges.iter().position(|&(left, right, _)| [left, right] == *pair).map(|rank| (rank, merges[rank].2))
            }
            Order::Ranks => {
                let both = [parts.tokens[&pair[0]].as_slice(), &parts.tokens[&pair[1]]].concat();
                parts.tokens.iter().find(|(_, token)| **token == both).map(|(&id, _)| (id as usize, id))
            }
        };
        let found =
            ids.windows(2).enumerate().filter_map(|(at, pair)| rank(pair).map(|(rank, id)| (rank, at, id))).min();
        let Some((_, at, id)) = found else { return ids };
        ids.splice(at..at + 2, [id]);
    }
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        4 => "[ab]{1,12}".prop_map(String::into_bytes),
        1 => "[ab]{60,80}".prop_map(String::into_bytes),
        4 => "[ \n\r\t'a1.]{1,4}".prop_map(String::into_bytes),
        2 => "('s|'LL|'re|'ſ|<\\|end\\|>|<\\|e|中国|\u{3000}|\u{a0}|é|½)".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

fn added() -> impl Strategy<Value = Vec<Added>> {
    let tokens = prop::collection::btree_map("[ab<é]{1,4}", (any::<bool>(), any::<bool>()), 0..12);
    tokens.prop_map(|tokens| {
        let token = |(id, (content, (special, normalized)))| Added { content, id, special, normalized };
        (0..).zip(tokens).map(token).collect()
    })
}

/// The definition: of the tokens that begin first the longest, then from its end on; `normalized` ones between the others.
fn found_by_scan(added: &[Added], text: &[u8], special: Special) -> Vec<(usize, u32)> {
    let scan = |from: usize, to: usize, normalized: bool| {
        let (mut at, mut found) = (from, Vec::new());
        while at < to {
            let is_here = |token: &&Added| {
                let is_wanted = token.normalized == normalized && !(token.special && special == Special::Split);
                is_wanted && text[at..to].starts_with(token.content.as_bytes())
            };
            match added.iter().filter(is_here).max_by_key(|token| token.content.len()) {
                Some(token) => {
                    found.push((at, token.id));
                    at += token.content.len();
                }
                None => at += 1,
            }
        }
        found
    };
    let (mut at, mut found) = (0, Vec::new());
    for (begin, id) in scan(0, text.len(), false) {
        found.extend(scan(at, begin, true));
        found.push((begin, id));
        at = begin + added[id as usize].content.len();
    }
    found.extend(scan(at, text.len(), true));
    found
}

fn pattern() -> impl Strategy<Value = Pattern> {
    prop::sample::select(Pattern::ALL.to_vec())
}

proptest! {
    #[test]
    fn merging_is_its_definition(piece in "[ab ]{1,100}", by_rank: bool) {
        let tokenizer = toy(by_rank, Pattern::Gpt2);
        let (mut links, mut out) = Default::default();
        tokenizer.merges.piece(piece.as_bytes(), &mut links, &mut out);
        prop_assert_eq!(out, reference(&tokenizer, piece.as_bytes()));
    }

    #[test]
    fn added_tokens_are_found_as_a_plain_scan_finds_them(added in added(), text in "[ab<éx]{0,40}") {
        let tokens = AddedTokens::new(added.clone()).unwrap();
        for special in [Special::Allow, Special::Refuse, Special::Split] {
            let found: Vec<_> = tokens.find(text.as_bytes(), special).map(|(at, token)| (at, token.id)).collect();
            prop_assert_eq!(found, found_by_scan(&added, text.as_bytes(), special));
        }
        for token in &added {
            prop_assert_eq!(tokens.id(token.content.as_bytes()), Some(token.id));
        }
    }

    #[test]
    fn any_bytes_are_given_back(text in text(), pattern in pattern(), by_rank: bool) {
        let tokenizer = toy(by_rank, pattern);
        for special in [Special::Allow, Special::Split] {
            let ids = tokenizer.encode(&text, special).unwrap();
            prop_assert_eq!(&tokenizer.decode(&ids).unwrap(), &text);
            prop_assert_eq!(ids, tokenizer.encode(&text, special).unwrap(), "the cache changes nothing");
        }
    }

    #[test]
    fn pieces_are_those_of_both_parts(text in text(), pattern in pattern()) {
        let cuts = |text: &[u8], from: usize| {
            let mut ends = Vec::new();
            pattern.cut(text, |_, end| ends.push(from + end));
            ends
        };
        let whole = cuts(&text, 0);
        prop_assert!(whole.is_sorted() && whole.last().copied().unwrap_or(0) == text.len());
        for at in (0..text.len()).filter(|&at| pattern.parts_at(&text, at)) {
            prop_assert_eq!(&[cuts(&text[..at], 0), cuts(&text[at..], at)].concat(), &whole, "at {}", at);
        }
    }

    #[test]
    fn a_text_in_pieces_gives_the_ids_of_the_whole(text in text(), size in 1usize..9, pattern in pattern()) {
        let tokenizer = toy(true, pattern);
        for special in [Special::Allow, Special::Split] {
            let (mut ids, mut kept) = (Vec::new(), Vec::new());
            for piece in text.chunks(size) {
                kept.extend_from_slice(piece);
                let settled = tokenizer.settled(&kept, special);
                ids.extend(tokenizer.encode(&kept[..settled], special).unwrap());
                kept.drain(..settled);
            }
            ids.extend(tokenizer.encode(&kept, special).unwrap());
            prop_assert_eq!(ids, tokenizer.encode(&text, special).unwrap());
        }
    }

    #[test]
    fn learned_merges_are_the_most_frequent_pairs(text in text(), pattern in pattern()) {
        let mut counts = PieceCounts::new(pattern, &["<|end|>".to_owned()]).unwrap();
        counts.add(&text).unwrap();
        let mut learner = Learner::new(&counts, 290, &["<|end|>".to_owned()], 1).unwrap();
        learner.advance(usize::MAX);
        let learned = learner.finish().unwrap();
        // The definition, on all pieces as they come.
        let Order::Merges { merges, .. } = &learned.parts().order else { unreachable!() };
        let byte = |&byte: &u8| learned.parts().tokens.iter().find(|(_, token)| **token == [byte]).map(|(&id, _)| id).unwrap();
        let mut words: Vec<Vec<u32>> = Vec::new();
        let string = String::from_utf8_lossy(&text);
        let parts: Vec<&[u8]> = match std::str::from_utf8(&text) {
            Ok(_) => string.split("<|end|>").map(str::as_bytes).collect(),
            Err(_) => return Ok(()),
        };
        for part in parts {
            pattern.cut(part, |begin, end| words.push(part[begin..end].iter().map(byte).collect()));
        }
        for &(left, right, id) in merges {
            let mut pairs = BTreeMap::<(u32, u32), i64>::new();
            for two in words.iter().flat_map(|word| word.windows(2)) {
                *pairs.entry((two[0], two[1])).or_default() += 1;
            }
            let best = pairs.iter().map(|(pair, count)| (-count, pair)).min().map(|(_, &pair)| pair);
            prop_assert_eq!(best, Some((left, right)));
            for word in &mut words {
                let mut at = 0;
                while at + 1 < word.len() {
                    if (word[at], word[at + 1]) == (left, right) {
                        word.splice(at..at + 2, [id]);
                    }
                    at += 1;
                }
            }
        }
        let mut again = PieceCounts::new(pattern, &["<|end|>".to_owned()]).unwrap();
        again.restore(&counts.save()).unwrap();
        prop_assert_eq!(again.sorted(), counts.sorted());
        prop_assert!(again.restore(&counts.save()[1..]).is_err());
    }

    #[test]
    fn files_are_read_back(pattern in pattern(), by_rank: bool, text in text()) {
        let tokenizer = toy(by_rank, pattern);
        let again = BytePairs::from_json(tokenizer.to_json().unwrap().as_bytes()).unwrap();
        prop_assert_eq!(&again.parts().added, &tokenizer.parts().added);
        prop_assert_eq!(again.parts().pattern, pattern);
        prop_assert_eq!(again.encode(&text, Special::Allow).unwrap(), tokenizer.encode(&text, Special::Allow).unwrap());
    }

    #[test]
    fn no_bytes_are_a_file_that_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        _ = BytePairs::from_json(&bytes).map(|_| ());
        _ = BytePairs::from_ranks(&bytes, Pattern::Gpt2, Vec::new()).map(|_| ());
        _ = BytePairs::from_merges(&bytes, br#"{"a": 0}"#, Pattern::Gpt2).map(|_| ());
    }
}

#[test]
fn characters_of_utf8_have_the_class_of_their_code_point() {
    let classes = Classes::get();
    for character in (0..=0x10_ffff).filter_map(char::from_u32) {
        let text = character.to_string().into_bytes();
        assert_eq!(classes.at(&text, 0), (classes.class(character as u32), text.len()), "{character:?}");
        assert_eq!(is_white(classes.class(character as u32)), character.is_whitespace(), "{character:?}");
        for cut in 1..text.len() {
            assert_eq!(classes.at(&text[..cut], 0), (0, 1), "half of {character:?}");
        }
    }
    for broken in
        [&b"\xc0\x80"[..], b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xff", b"\x80"]
    {
        assert_eq!(classes.at(broken, 0), (0, 1));
    }
}

#[test]
fn special_tokens_are_allowed_refused_or_split() {
    let tokenizer = toy(true, Pattern::Gpt2);
    let text = b"ab<|end|>ab<|e";
    assert_eq!(tokenizer.encode(text, Special::Allow).unwrap(), [257, 1000, 257, 1001]);
    assert_eq!(tokenizer.encode(text, Special::Split).unwrap().len(), 12);
    let refused = tokenizer.encode_batch(&[b"ab", text], Special::Refuse, false).unwrap_err().to_string();
    assert!(refused.starts_with("text 1: special token \"<|end|>\" at byte 2"), "{refused}");
}

#[test]
fn long_pieces_take_no_quadratic_time() {
    let tokenizer = toy(false, Pattern::Gpt2);
    let text = vec![b'a'; 1 << 20];
    let ids = tokenizer.encode(&text, Special::Split).unwrap();
    assert_eq!(ids, vec![256; 1 << 19], "two letters a token"); // quadratic time would be minutes
}

#[test]
fn parts_that_contradict_themselves_are_refused() {
    let parts = |change: fn(&mut Parts)| {
        let mut parts = toy(false, Pattern::Gpt2).parts().clone();
        change(&mut parts);
        BytePairs::new(parts).map(|_| ()).unwrap_err().to_string()
    };
    assert!(parts(|parts| parts.tokens.clear()).contains("without tokens"));
    assert!(parts(|parts| _ = parts.tokens.insert(u32::MAX, vec![1])).contains("accepted are ids below"));
    assert!(parts(|parts| _ = parts.tokens.insert(1001, Vec::new())).contains("is empty"));
    assert!(parts(|parts| parts.order = Order::Merges { merges: vec![(1, 2, 3)], whole: false }).contains("merge 0"));
    assert!(
        parts(|parts| parts.order = Order::Merges { merges: vec![(1, 2, 999)], whole: false }).contains("no token")
    );
    assert!(parts(|parts| parts.added[1].id = 1000).contains("is there twice"));
    assert!(parts(|parts| parts.added[1].content.clear()).contains("id 1001 is empty"));
    assert!(parts(|parts| parts.added[1].content = "x".repeat(1 << 23)).contains("accepted are at most 4194304"));
    assert!(parts(|parts| parts.around.0.push(5555)).contains("no token"));
    let no_byte = |parts: &mut Parts| {
        parts.order = Order::Ranks;
        parts.tokens.remove(&7);
    };
    assert!(parts(no_byte).contains("byte 0x07 has no rank"));
}
