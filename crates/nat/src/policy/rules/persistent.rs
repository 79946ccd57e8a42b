use std::sync::Arc;

const PIECE: usize = 1024;

/// A list whose clones share pieces. A clone costs a pointer for each, a change copies one.
#[derive(Clone, Debug)]
pub(super) struct PersistentList<T> {
    pieces: Vec<Arc<Vec<T>>>,
    length: usize,
}

impl<T: Clone> PersistentList<T> {
    pub(super) fn from_slice(all: &[T]) -> PersistentList<T> {
        let pieces = all.chunks(PIECE).map(|piece| Arc::new(piece.to_vec())).collect();
        PersistentList { pieces, length: all.len() }
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.pieces.get(index / PIECE)?.get(index % PIECE)
    }

    pub(super) fn set(&mut self, index: usize, value: T) {
        if let Some(slot) =
            self.pieces.get_mut(index / PIECE).and_then(|piece| Arc::make_mut(piece).get_mut(index % PIECE))
        {
            *slot = value;
        }
    }

    pub(super) fn push(&mut self, value: T) {
        if self.length.is_multiple_of(PIECE) {
            self.pieces.push(Arc::new(Vec::with_capacity(PIECE)));
        }
        if let Some(piece) = self.pieces.last_mut() {
            Arc::make_mut(piece).push(value);
            self.length += 1;
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.length * size_of::<T>()
    }
}
