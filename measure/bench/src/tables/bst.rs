//! `bst`: a binary search tree that nobody balances (figure 3 of the paper).
//!
//! Nodes are taken one after the other from a pool and linked by index: parent and two children, as
//! the paper counts them. With random keys the tree is about 2.5 times as deep at most as a
//! balanced one, and 1.4 times on average.

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
    key: Key,
    number: u32,
    /// Smaller keys, larger keys; 0 for none.
    children: [u32; 2],
    /// Not needed to insert or find; a NAT needs it to take a flow out that has run out.
    parent: u32,
}

/// The tree. Node 0 is not used.
pub(super) struct Bst {
    nodes: Arena<Node>,
    root: u32,
    len: u32,
}

impl Lookup for Bst {
    fn new(size: Size) -> Result<Bst, BuildError> {
        Ok(Bst { nodes: Arena::zeroed(size.sessions as usize + 1)?, root: 0, len: 0 })
    }

    #[inline]
    fn find_or_insert(&mut self, key: Key, new: u32) -> Result<u32, Full> {
        let (mut at, mut parent, mut side) = (self.root, 0, 0);
        while at != 0 {
            let node = self.nodes.at(at);
            if node.key == key {
                return Ok(node.number);
            }
            parent = at;
            side = usize::from(key > node.key);
            at = node.children[side];
        }
        let index = self.len + 1;
        let node = self.nodes.get_mut(index as usize).ok_or(Full)?;
        *node = Node { key, number: new, children: [0; 2], parent };
        self.len = index;
        match parent {
            0 => self.root = index,
            parent => self.nodes.at_mut(parent).children[side] = index,
        }
        Ok(new)
    }

    fn bytes(&self) -> usize {
        self.nodes.bytes()
    }
}
