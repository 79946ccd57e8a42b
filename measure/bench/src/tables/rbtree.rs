//! `rbtree`: a red-black tree (figure 3 of the paper): a search tree that keeps its depth below 2
//! log₂ n.
//!
//! Nodes come from a pool and are linked by index, as in `bst`; insertion mends the colours from
//! the new node upwards (Cormen et al., *Introduction to Algorithms*, chapter 13).

use mem::Arena;
use mem::FromZeros;

use super::structure::BuildError;
use super::structure::Full;
use super::structure::Key;
use super::structure::Lookup;
use super::structure::Size;

#[cfg(test)]
mod tests;

/// Index of no node: also the black leaf below every node without a child.
const NIL: u32 = 0;
const BLACK: u32 = 0;
const RED: u32 = 1;

/// One node: half a cache line, so that none lies across two.
#[derive(Clone, Copy, FromZeros)]
#[repr(C, align(32))]
struct Node {
    key: Key,
    number: u32,
    /// Smaller keys, larger keys.
    children: [u32; 2],
    parent: u32,
    colour: u32,
}

/// The tree.
pub(super) struct RbTree {
    nodes: Arena<Node>,
    root: u32,
    len: u32,
}

impl RbTree {
    fn colour(&self, node: u32) -> u32 {
        self.nodes.at(node).colour
    }

    fn parent(&self, node: u32) -> u32 {
        self.nodes.at(node).parent
    }

    fn child(&self, node: u32, side: usize) -> u32 {
        self.nodes.at(node).children[side]
    }

    /// On which side of its parent the node is.
    fn side(&self, node: u32) -> usize {
        usize::from(self.child(self.parent(node), 1) == node)
    }

    /// Moves `node` down to `side`; its child on the other side takes its place.
    fn rotate(&mut self, node: u32, side: usize) {
        let up = self.child(node, 1 - side);
        let inner = self.child(up, side);
        let parent = self.parent(node);
        if parent == NIL {
            self.root = up;
        } else {
            let side_of_node = self.side(node);
            self.nodes.at_mut(parent).children[side_of_node] = up;
        }
        self.nodes.at_mut(up).parent = parent;
        self.nodes.at_mut(up).children[side] = node;
        self.nodes.at_mut(node).parent = up;
        self.nodes.at_mut(node).children[1 - side] = inner;
        if inner != NIL {
            self.nodes.at_mut(inner).parent = node;
        }
    }

    /// `node` is red and new: sees to it that no red node has a red parent.
    fn mend(&mut self, mut node: u32) {
        loop {
            let parent = self.parent(node);
            if parent == NIL || self.colour(parent) == BLACK {
                break;
            }
            // A red node is never the root, so there is a grandparent.
            let grandparent = self.parent(parent);
            let side = self.side(parent);
            let uncle = self.child(grandparent, 1 - side);
            if uncle != NIL && self.colour(uncle) == RED {
                self.nodes.at_mut(parent).colour = BLACK;
                self.nodes.at_mut(uncle).colour = BLACK;
                self.nodes.at_mut(grandparent).colour = RED;
                node = grandparent;
                continue;
            }
            let top = if self.side(node) == side {
                parent
            } else {
                self.rotate(parent, side);
                node
            };
            self.nodes.at_mut(top).colour = BLACK;
            self.nodes.at_mut(grandparent).colour = RED;
            self.rotate(grandparent, 1 - side);
            break;
        }
        let root = self.root;
        self.nodes.at_mut(root).colour = BLACK;
    }
}

impl Lookup for RbTree {
    fn new(size: Size) -> Result<RbTree, BuildError> {
        Ok(RbTree { nodes: Arena::zeroed(size.sessions as usize + 1)?, root: NIL, len: 0 })
    }

    #[inline]
    fn find_or_insert(&mut self, key: Key, new: u32) -> Result<u32, Full> {
        let (mut at, mut parent, mut side) = (self.root, NIL, 0);
        while at != NIL {
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
        *node = Node { key, number: new, children: [NIL; 2], parent, colour: RED };
        self.len = index;
        match parent {
            NIL => self.root = index,
            parent => self.nodes.at_mut(parent).children[side] = index,
        }
        self.mend(index);
        Ok(new)
    }

    fn bytes(&self) -> usize {
        self.nodes.bytes()
    }
}
