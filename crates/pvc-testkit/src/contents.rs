use std::collections::BTreeMap;
use std::sync::Arc;

const BLOCK: usize = 4096;

/// Contents of a volume: blocks, shared with its copies until one of them writes. The rest is
/// zeros.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contents {
    blocks: BTreeMap<u64, Arc<[u8; BLOCK]>>,
}

impl Contents {
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (number, at, piece) in pieces(offset, bytes.len()) {
            let block = self.blocks.entry(number).or_insert_with(|| Arc::new([0; BLOCK]));
            Arc::make_mut(block)[at..at + piece.len()].copy_from_slice(&bytes[piece]);
        }
    }

    /// Writes as [`write`](Contents::write) does, but blocks of zeros take no room.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
        for (number, at, piece) in pieces(offset, bytes.len()) {
            let is_whole = (at, piece.len()) == (0, BLOCK);
            match is_whole && bytes[piece.clone()].iter().all(|byte| *byte == 0) {
                true => drop(self.blocks.remove(&number)),
                false => self.write(number * BLOCK as u64 + at as u64, &bytes[piece]),
            }
        }
    }

    /// Returns the offset of the first byte from `at` on that lies in a block which was written.
    pub fn next_written(&self, at: u64) -> Option<u64> {
        let (number, _) = self.blocks.range(at / BLOCK as u64..).next()?;
        Some(at.max(number * BLOCK as u64))
    }

    pub fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        for (number, at, piece) in pieces(offset, length) {
            if let Some(block) = self.blocks.get(&number) {
                let found = &block[at..at + piece.len()];
                bytes[piece].copy_from_slice(found);
            }
        }
        bytes
    }

    /// Forgets what is beyond `size`: a volume that grows again has zeros there.
    pub fn cut(&mut self, size: u64) {
        let (number, at) = (size / BLOCK as u64, (size % BLOCK as u64) as usize);
        self.blocks.split_off(&(number + 1));
        match at {
            0 => drop(self.blocks.remove(&number)),
            at => {
                if let Some(block) = self.blocks.get_mut(&number) {
                    Arc::make_mut(block)[at..].fill(0);
                }
            }
        }
    }

    /// Makes the first `bytes` what they are in `other`, in whole blocks.
    pub fn take_front_of(&mut self, other: &Contents, bytes: u64) {
        let first_kept = bytes / BLOCK as u64;
        let kept = self.blocks.split_off(&first_kept);
        let front = other.blocks.range(..first_kept);
        self.blocks = front.map(|(number, block)| (*number, block.clone())).collect();
        self.blocks.extend(kept);
    }

    /// Numbers of the blocks that `other` does not share, each with its number of bytes.
    pub fn not_in<'a>(&'a self, other: &'a Contents) -> impl Iterator<Item = (u64, u64)> + 'a {
        let is_other = |number: &u64, block: &Arc<[u8; BLOCK]>| {
            other.blocks.get(number).is_none_or(|found| !Arc::ptr_eq(found, block))
        };
        let blocks = self.blocks.iter().filter(move |(number, block)| is_other(number, block));
        blocks.map(|(number, _)| (*number, BLOCK as u64))
    }

    pub fn used_bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK) as u64
    }
}

/// The blocks that a stretch lies in: the number of each, where in it the stretch begins, and which
/// bytes of the stretch those are.
fn pieces(
    offset: u64,
    length: usize,
) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let here = offset + done as u64;
        let (number, at) = (here / BLOCK as u64, (here % BLOCK as u64) as usize);
        let piece = done..length.min(done + BLOCK - at);
        done = piece.end;
        (!piece.is_empty()).then_some((number, at, piece))
    })
}
