//! Laws of the codecs, on small hand-made cases; the property tests are in tests/laws.rs.
