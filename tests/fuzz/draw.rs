//! The random choices of a case, read from the bytes of a fuzzing input. The same input repeats the case.

/// A source of choices. When the input is used up, it returns zeros.
pub(crate) struct Draw {
    input: Vec<u8>,
    at: usize,
    shown: Vec<(String, Vec<u8>)>,
}

impl Draw {
    pub(crate) fn new(input: &[u8]) -> Self {
        Self { input: input.to_vec(), at: 0, shown: Vec::new() }
    }

    /// A number below `bound` (which is not zero).
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let width = (u64::BITS - (bound - 1).leading_zeros()).div_ceil(8);
        (0..width).fold(0, |number, _| number << 8 | u64::from(self.byte())) % bound
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        // When the input is used up, the result is false.
        self.below(count) == count - 1
    }

    pub(crate) fn of<'t, T>(&mut self, items: &'t [T]) -> &'t T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// The rest of the input, unchanged.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        self.input.split_off(self.at.min(self.input.len()))
    }

    /// Stores bytes for the report of a failure. Must never be a private key.
    pub(crate) fn show(&mut self, name: &str, bytes: &[u8]) {
        self.shown.push((name.to_owned(), bytes.to_vec()));
    }

    pub(crate) fn shown(&self) -> &[(String, Vec<u8>)] {
        &self.shown
    }

    fn byte(&mut self) -> u8 {
        let byte = self.input.get(self.at).copied().unwrap_or_default();
        self.at += 1;
        byte
    }
}
