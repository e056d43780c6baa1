//! Laws of the tokenizer: what is encoded is decoded, and broken input says where it is broken.

use proptest::prelude::*;

use super::*;
use crate::Error;

fn encode(tokenizer: &CharTokenizer, text: &str, width: usize, around: Around) -> Result<(Vec<u8>, Vec<i64>)> {
    let (rows, _) = CharTokenizer::measure(text.as_bytes())?;
    let (mut ids, mut lengths) = (vec![99; rows * width], vec![0; rows]);
    tokenizer.encode_batch(text.as_bytes(), width, around, &mut ids, &mut lengths)?;
    Ok((ids, lengths))
}

proptest! {
    #[test]
    fn decode_inverts_encode(lines in prop::collection::vec("[^\n]{0,40}", 0..20), start: bool, end: bool, room in 0..3usize) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let Ok(tokenizer) = CharTokenizer::from_lines(text.replace('\n', "").as_bytes()) else {
            prop_assert!(lines.concat().is_empty() || lines.concat().chars().count() > MOST_CHARACTERS);
            return Ok(());
        };
        let around = Around { start, end };
        let (rows, longest) = CharTokenizer::measure(text.as_bytes()).unwrap();
        prop_assert_eq!((rows, longest), (lines.len(), lines.iter().map(|line| line.chars().count()).max().unwrap_or(0)));
        let width = longest + around.tokens() + room;
        let (ids, lengths) = encode(&tokenizer, &text, width, around).unwrap();
        for (row, (line, length)) in lines.iter().zip(lengths).enumerate() {
            let ids = &ids[row * width..][..width];
            prop_assert_eq!(length as usize, line.chars().count() + around.tokens());
            prop_assert!(ids[length as usize..].iter().all(|&id| id == PAD));
            prop_assert!(!start || ids[0] == START);
            prop_assert!(!end || ids[length as usize - 1] == END);
        }
        prop_assert_eq!(&tokenizer.decode_batch(&ids, rows, width).unwrap(), &text);
        let wide: Vec<i64> = ids.iter().copied().map(i64::from).collect();
        prop_assert_eq!(&tokenizer.decode_batch(&wide, rows, width).unwrap(), &text);
        let (mut other, mut lengths) = (vec![7i64; wide.len()], vec![0; rows]);
        tokenizer.encode_batch(text.as_bytes(), width, around, &mut other, &mut lengths).unwrap();
        prop_assert_eq!(other, wide);
        prop_assert_eq!(CharTokenizer::from_json(tokenizer.to_json().unwrap().as_bytes()).unwrap(), tokenizer);
    }
}

#[test]
fn large_texts_are_the_same_in_pieces() {
    let lines: Vec<String> = (0..40_000).map(|i| format!("{}ä{}", i * 7919 % 1000, "x".repeat(i % 13))).collect();
    let text = lines.join("\n");
    let tokenizer = CharTokenizer::from_lines(text.as_bytes().split(|&b| b == b'\n').next().unwrap()).unwrap();
    let error = encode(&tokenizer, &text, 30, Around::default()).unwrap_err().to_string();
    assert!(error.starts_with("line 2, column 1: character '9'"), "{error}");
    let tokenizer = CharTokenizer::from_characters("x0123456789ä").unwrap();
    assert_eq!(CharTokenizer::from_lines(text.as_bytes()).unwrap(), tokenizer);
    let (ids, _) = encode(&tokenizer, &text, 20, Around { start: true, end: true }).unwrap();
    assert_eq!(tokenizer.decode_batch(&ids, lines.len(), 20).unwrap(), text.clone() + "\n");
    let (at, long) = lines.iter().enumerate().find(|(_, line)| line.chars().count() == 16).unwrap();
    let error = encode(&tokenizer, &text, 16, Around { start: false, end: true }).unwrap_err().to_string();
    assert_eq!(error, format!("line {}: 17 tokens, 1 of them special; the limit is 16", at + 1), "{long}");
}

#[test]
fn broken_lines_say_where_and_why() {
    let tokenizer = CharTokenizer::from_characters("abé").unwrap();
    for (text, width, message) in [
        (&b"ab\naxb"[..], 9, "line 2, column 2: character 'x' is not in the vocabulary; allowed are \"abé\""),
        (b"ab\n\xc3\xa9\xc3\xa8", 9, "line 2, column 2: character 'è' is not"),
        (b"a\xffb", 9, "line 1, column 2: broken UTF-8 at byte 0xff"),
        (b"\xc3\xa9\xc3\nab", 9, "line 1, column 2: broken UTF-8 at byte 0xc3"),
        (b"ab\r\n", 9, "line 1, column 3: character '\\r'"),
        (b"ab\nabab", 3, "line 2: 4 tokens; the limit is 3"),
        (b"a", 0, "line 1: 1 tokens; the limit is 0"),
    ] {
        let (rows, _) = CharTokenizer::measure(text).unwrap();
        let (mut ids, mut lengths) = (vec![0u8; rows * width], vec![0; rows]);
        let answer = tokenizer.encode_batch(text, width, Around::default(), &mut ids, &mut lengths);
        let error = answer.unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    // Fewer characters than bytes: nothing of the bytes is left behind.
    assert_eq!(encode(&tokenizer, "ééab", 5, Around::default()).unwrap().0, [5, 5, 3, 4, 0]);
    assert_eq!(encode(&tokenizer, "é", 1, Around::default()).unwrap().0, [5]);
}

#[test]
fn lines_end_with_line_feeds_or_the_text() {
    for (text, count) in [("", 0), ("a", 1), ("a\n", 1), ("\n", 1), ("\n\n", 2), ("a\n\nb", 3)] {
        assert_eq!(CharTokenizer::measure(text.as_bytes()).unwrap().0, count, "{text:?}");
    }
}

#[test]
fn numbers_that_are_no_ids_are_refused() {
    let tokenizer = CharTokenizer::from_characters("ab").unwrap();
    assert_eq!(tokenizer.decode_batch(&[1i64, 3, 0, 4, 2, 77, 3, 3, 3, 3, 0, 0], 2, 6).unwrap(), "ab\naaaa\n");
    for wrong in [5i64, -1, 256, i64::MAX, i64::MIN] {
        let error = tokenizer.decode_batch(&[3, 3, 3, wrong], 2, 2).unwrap_err().to_string();
        assert_eq!(error, format!("row 2, column 2: id {wrong}; accepted are 0 to 4"));
    }
    assert!(tokenizer.decode_batch(&[3u8; 5], 2, 2).is_err());
    assert_eq!(tokenizer.decode_batch::<u8>(&[], 3, 0).unwrap(), "\n\n\n");
}

#[test]
fn vocabularies_have_limits() {
    let many: String = (0..254u32).map(|i| char::from_u32(0x4e00 + i).unwrap()).collect();
    let error = CharTokenizer::from_characters(&many).unwrap_err().to_string();
    assert!(error.contains("254 characters"), "{error}");
    assert_eq!(CharTokenizer::from_lines(many.as_bytes()).unwrap_err().to_string(), error);
    let most: String = many.chars().skip(1).collect();
    let tokenizer = CharTokenizer::from_characters(&most).unwrap();
    assert_eq!(tokenizer.size(), 256);
    let (ids, _) = encode(&tokenizer, &most, 253, Around::default()).unwrap();
    assert_eq!(ids, (3..=255).collect::<Vec<u8>>());
    assert!(CharTokenizer::from_characters("").is_err());
    assert!(CharTokenizer::from_characters("a\nb").is_err());
}

#[test]
fn hostile_files_are_refused() {
    let good = CharTokenizer::from_characters("ab").unwrap().to_json().unwrap();
    assert_eq!(
        good,
        "{\"type\":\"char\",\"version\":1,\"special\":{\"pad\":0,\"start\":1,\"end\":2},\"characters\":\"ab\"}\n"
    );
    for (from, to, reason) in [
        ("char", "word", "type \"word\", version 1; accepted is \"char\""),
        ("\"version\":1", "\"version\":2", "version 2"),
        ("\"version\":1,", "", "missing field `version`"),
        ("\"version\":1", "\"version\":1,\"version\":1", "duplicate field `version`"),
        ("\"version\":1", "\"version\":1,\"more\":1", "unknown field `more`"),
        ("\"version\":1", "\"version\":-1", "invalid value"),
        ("\"pad\":0", "\"pad\":5", "pad 5"),
        ("\"end\":2", "\"end\":2,\"mask\":3", "unknown field `mask`"),
        ("ab", "aa", "'a' at position 1 stands twice"),
        ("ab", "ba", "'a' at position 1 is out of order"),
        ("\"ab\"", "\"\"", "0 characters"),
        ("ab", "\\na", "line feed"),
        ("ab", "\\ud800", "hex escape"),
        ("}\n", "}}", "trailing"),
        ("}\n", "", "EOF"),
        ("\"ab\"", "[97,98]", "invalid type"),
    ] {
        let error = CharTokenizer::from_json(good.replacen(from, to, 1).as_bytes()).unwrap_err().to_string();
        assert!(error.contains(reason), "{from} -> {to}: {error}");
    }
    let long = format!("{}{good}", " ".repeat(70_000));
    assert!(CharTokenizer::from_json(long.as_bytes()).unwrap_err().to_string().contains("at most 65536"));
    let many: String = (0..300u32).map(|i| char::from_u32(0x4e00 + i).unwrap()).collect();
    let error = CharTokenizer::from_json(good.replace("ab", &many).as_bytes()).unwrap_err().to_string();
    assert!(error.contains("more than 253"), "{error}");
    assert!(CharTokenizer::from_json(&[0xff; 10]).is_err());
    assert!(CharTokenizer::from_json("[".repeat(60_000).as_bytes()).is_err());
}

#[test]
fn a_file_appears_whole_and_is_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let tokenizer = CharTokenizer::from_characters("()*+-0123456789xyz").unwrap();
    tokenizer.save(&path).unwrap();
    tokenizer.save(&path).unwrap();
    assert_eq!(CharTokenizer::load(&path).unwrap(), tokenizer);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert!(matches!(tokenizer.save(folder.path()), Err(Error::Io { .. })));
    assert!(matches!(tokenizer.save(&folder.path().join("none/tokenizer.json")), Err(Error::Io { .. })));
    assert!(matches!(CharTokenizer::load(folder.path()), Err(Error::Io { .. })));
    std::fs::write(&path, "{}").unwrap();
    let error = CharTokenizer::load(&path).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json: missing field"), "{error}");
}
