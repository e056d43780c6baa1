//! Tests on a small vocabulary; `tests/engine/test_text_encoder.py` compares every character with the reference tokenizer.

use super::WordPiece;

const FILE: &str = r###"{"model": {"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 9, "vocab": {"?": 0, "[A]": 1, "[B]": 2, "un": 3, "##aff": 4, "##able": 5, "a": 6,
    "##b": 7, "ab": 8, ",": 9, "中": 10}},
    "normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "BertProcessing", "sep": ["[B]", 2], "cls": ["[A]", 1]},
    "added_tokens": [{"id": 2, "content": "[B]"}, {"id": 11, "content": "[B]]"}]}"###;

fn tokenizer() -> WordPiece {
    WordPiece::from_json(FILE.as_bytes()).unwrap()
}

#[test]
fn words_become_their_longest_pieces() {
    let cases: [(&str, &[u32]); 10] = [
        ("", &[]),
        ("ab", &[8]),
        ("abb", &[8, 7]),
        ("Á\u{301}b, a", &[8, 9, 6]),
        ("unaffable", &[3, 4, 5]),
        ("unaffablea", &[0]),
        ("ax a", &[0, 6]),
        ("a中\u{0}b\u{2003}", &[6, 10, 0]),
        ("a[B]a", &[6, 2, 6]),
        ("[B]]a[B", &[11, 6, 0, 0]),
    ];
    for (text, ids) in cases {
        let all = [&[1], ids, &[2]].concat();
        assert_eq!(tokenizer().encode(text, 100), all, "{text:?}");
        for limit in 2..all.len() {
            assert_eq!(tokenizer().encode(text, limit), [&all[..limit - 1], &[2]].concat(), "{text:?} {limit}");
        }
    }
    assert_eq!(tokenizer().size(), 12);
}

#[test]
fn other_tokenizers_are_refused_by_the_field() {
    let cases = [
        (r#""type": "WordPiece""#, r#""type": "BPE""#, "model: type \"BPE\""),
        (r#""type": "BertNormalizer""#, r#""type": "NFC""#, "normalizer"),
        (r#""type": "BertPreTokenizer""#, r#""type": "Whitespace""#, "pre_tokenizer"),
        (r#""unk_token": "?""#, r#""unk_token": "x""#, "model.vocab"),
        (r#""un": 3"#, r#""un": 16777216"#, "id 16777216"),
        (r#""content": "[B]]""#, r#""content": "", "lstrip": true"#, "added_tokens"),
        (r#""id": 2, "#, "", "missing field `id`"),
    ];
    for (old, new, said) in cases {
        let error = WordPiece::from_json(FILE.replacen(old, new, 1).as_bytes()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}
