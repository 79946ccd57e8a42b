//! `chain-tree`: a hash table whose collisions go into a search tree, one a cell (figure 5 of the
//! paper).
//!
//! Each cell is the root of its tree; further nodes come from a pool. Keys of one cell are alike in
//! their lower bits and random in the others, so the trees need no balancing. Better than lists
//! only where cells have many items.

use mem::Arena;
use mem::FromZeros;

use super::structure::BuildError;
use super::structure::Full;
use super::structure::Key;
use super::structure::Lookup;
use super::structure::Size;

/// One node: half a cache line, so that none lies across two.
#[derive(Clone, Copy, FromZeros)]
#[repr(C, align(32))]
struct Node {
    /// 0: no node.
    key: Key,
    number: u32,
    /// Smaller keys, larger keys; 0 for none.
    children: [u32; 2],
    _reserved: u32,
}

/// Cells and pool in one array: indices from `cells` on are the pool's.
pub(super) struct ChainTree {
    nodes: Arena<Node>,
    /// A power of two.
    cells: u32,
    /// The next node of the pool that was never used.
    untouched: u32,
}

impl Lookup for ChainTree {
    fn new(size: Size) -> Result<ChainTree, BuildError> {
        // At worst all flows are in one cell.
        let nodes = Arena::zeroed(size.cells as usize + size.sessions as usize)?;
        Ok(ChainTree { nodes, cells: size.cells, untouched: size.cells })
    }

    #[inline]
    fn find_or_insert(&mut self, key: Key, new: u32) -> Result<u32, Full> {
        let mut at = (key % u64::from(self.cells)) as u32;
        let side = loop {
            let node = self.nodes.at_mut(at);
            if node.key == key {
                return Ok(node.number);
            }
            if node.key == 0 {
                (node.key, node.number) = (key, new);
                return Ok(new);
            }
            let side = usize::from(key > node.key);
            if node.children[side] == 0 {
                break side;
            }
            at = node.children[side];
        };
        let index = self.untouched;
        let node = self.nodes.get_mut(index as usize).ok_or(Full)?;
        *node = Node { key, number: new, children: [0; 2], _reserved: 0 };
        self.untouched += 1;
        self.nodes.at_mut(at).children[side] = index;
        Ok(new)
    }

    fn bytes(&self) -> usize {
        self.nodes.bytes()
    }
}
