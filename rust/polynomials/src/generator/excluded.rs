//! A set of line keys that is asked once for every line drawn.

/// Open addressing over a table at most half full: one multiplication and mostly one load for each question.
#[derive(Clone, Debug, Default)]
pub(super) struct Excluded {
    /// Keys plus one; 0 is a free place. The length is a power of two, or 0 for the empty set.
    places: Vec<u64>,
    count: usize,
}

impl Excluded {
    /// The set of some keys, which are below 2^29; repeated ones count once.
    pub(super) fn new(keys: &[u64]) -> Self {
        if keys.is_empty() {
            return Self::default();
        }
        let mut set = Self { places: vec![0; (2 * keys.len()).next_power_of_two()], count: 0 };
        for &key in keys {
            let place = set.place(key);
            set.count += usize::from(set.places[place] == 0);
            set.places[place] = key + 1;
        }
        set
    }

    /// How many keys there are.
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// Whether `key` is in the set.
    pub(super) fn contains(&self, key: u64) -> bool {
        !self.places.is_empty() && self.places[self.place(key)] != 0
    }

    /// Where `key` is, or the free place where it would be.
    fn place(&self, key: u64) -> usize {
        let mask = self.places.len() - 1;
        // Fibonacci hashing: the high half of the product depends on every bit of the key.
        let mut place = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        while self.places[place] != 0 && self.places[place] != key + 1 {
            place = (place + 1) & mask;
        }
        place
    }
}
