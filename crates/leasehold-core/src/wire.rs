//! The small encoding that facts and snapshots share: varints, and text with its length before it.

/// The bytes end too soon, or do not mean anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the record does not parse")]
pub struct MalformedRecord;

/// Appends an unsigned number, seven bits a byte, low bits first.
pub fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends text with its length before it.
pub fn put_str(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

/// Appends bytes with their length before them.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads records back. Every read is bounded by the bytes that are there: no length is believed.
#[derive(Clone, Copy, Debug)]
pub struct WireReader<'a> {
    rest: &'a [u8],
}

impl<'a> WireReader<'a> {
    /// Reads from the beginning of these bytes.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// How many bytes are left.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.rest.len()
    }

    /// One byte.
    ///
    /// # Errors
    ///
    /// [`MalformedRecord`] at the end.
    pub fn byte(&mut self) -> Result<u8, MalformedRecord> {
        let (&first, rest) = self.rest.split_first().ok_or(MalformedRecord)?;
        self.rest = rest;
        Ok(first)
    }

    /// A number as [`put_u64`] wrote it.
    ///
    /// # Errors
    ///
    /// [`MalformedRecord`] if it ends too soon or does not fit.
    pub fn u64(&mut self) -> Result<u64, MalformedRecord> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(MalformedRecord);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(MalformedRecord)
    }

    /// A number that fits in 32 bits.
    ///
    /// # Errors
    ///
    /// [`MalformedRecord`] if it does not.
    pub fn u32(&mut self) -> Result<u32, MalformedRecord> {
        u32::try_from(self.u64()?).map_err(|_| MalformedRecord)
    }

    /// Exactly `N` bytes.
    ///
    /// # Errors
    ///
    /// [`MalformedRecord`] if fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedRecord> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(MalformedRecord)?;
        self.rest = rest;
        Ok(*head)
    }

    /// Text as [`put_str`] wrote it.
    ///
    /// # Errors
    ///
    /// [`MalformedRecord`] if it ends too soon or is no UTF-8.
    pub fn str(&mut self) -> Result<&'a str, MalformedRecord> {
        core::str::from_utf8(self.bytes()?).map_err(|_| MalformedRecord)
    }

    /// Bytes as [`put_bytes`] wrote them.
    ///
    /// # Errors
    ///
    /// [`MalformedRecord`] if they end too soon.
    pub fn bytes(&mut self) -> Result<&'a [u8], MalformedRecord> {
        let len = usize::try_from(self.u64()?).map_err(|_| MalformedRecord)?;
        let (head, rest) = self.rest.split_at_checked(len).ok_or(MalformedRecord)?;
        self.rest = rest;
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_put_is_read_back(number: u64, text: String) {
            let mut bytes = Vec::new();
            put_u64(&mut bytes, number);
            put_str(&mut bytes, &text);
            let mut reader = WireReader::new(&bytes);
            prop_assert_eq!(reader.u64(), Ok(number));
            prop_assert_eq!(reader.str(), Ok(text.as_str()));
            prop_assert_eq!(reader.left(), 0);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let mut reader = WireReader::new(&bytes);
            while reader.str().is_ok() {}
            while reader.u64().is_ok() {}
        }
    }

    #[test]
    fn a_length_that_lies_is_not_believed() {
        let mut bytes = Vec::new();
        put_u64(&mut bytes, u64::MAX);
        assert_eq!(WireReader::new(&bytes).str(), Err(MalformedRecord));
    }
}
